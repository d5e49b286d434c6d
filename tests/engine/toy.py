"""Toy detector that trains in milliseconds, and helpers for its runs."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from detlite.checkpoint.contents import Checkpoint
from detlite.checkpoint.files import read_checkpoint
from detlite.conventions import CONVENTIONS
from detlite.structures.instances import Detections


class ToyDetector(nn.Module):
    """Has the interface of a `DetectionModel`. Detects the red (1) or green (2) block exactly.

    With `noise` 0, nothing is random and the batch norm is in evaluation mode.
    """

    channels = 3
    takes_proposals = False
    resizes_images = False
    static_shapes = False
    required_targets = ("masks",)

    def __init__(self, num_classes: int = 3, width: int = 4, noise: float = 0.1) -> None:
        super().__init__()
        self.noise = noise
        self.body = nn.Conv2d(3, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        predictor = nn.ModuleDict(
            {"cls_score": nn.Linear(width, num_classes), "bbox_pred": nn.Linear(width, 4)}
        )
        self.roi_heads = nn.ModuleDict({"box": nn.ModuleDict({"predictor": predictor})})
        self.categories: list[dict[str, Any]] = []
        self.convention = CONVENTIONS["detlite"]
        self.mask_threshold = 0.5

    def use_memory_format(self) -> None:
        """Do nothing: the weights keep their memory format."""

    @property
    def normalizer(self) -> SimpleNamespace:
        return SimpleNamespace(bgr255=False, channels_last=False, divisibility=0)

    @property
    def device(self) -> torch.device:
        return self.body.weight.device

    @property
    def backbone(self) -> SimpleNamespace:
        """The part that is pretrained in other detectors."""
        return SimpleNamespace(body=nn.ModuleList([self.body, self.norm]))

    def forward(self, images: list[Tensor], targets: list[dict[str, Any]]) -> dict[str, Tensor]:
        pixels = torch.stack([F.interpolate(i[None] / 255, (8, 8))[0] for i in images])
        if not self.noise:
            self.norm.eval()
        labels = torch.stack([target["labels"][0] for target in targets])
        boxes = torch.stack([target["boxes"][0] for target in targets]) / 32
        return self.losses(pixels, labels, boxes)

    def losses(self, pixels: Tensor, labels: Tensor, boxes: Tensor) -> dict[str, Tensor]:
        """Compute the losses of pixels [B, 3, 8, 8], labels [B] and boxes [B, 4]."""
        features = self.norm(self.body(pixels)).relu().mean((2, 3))
        # Random like the sampling of proposals.
        features = features + self.noise * torch.rand_like(features)
        predictor = self.roi_heads["box"]["predictor"]
        return {
            "loss_classifier": F.cross_entropy(predictor["cls_score"](features), labels),
            "loss_box": F.l1_loss(predictor["bbox_pred"](features), boxes),
        }

    def training_parts(self) -> list[tuple[nn.Module, str]]:
        return [(self, "losses")]

    @torch.no_grad()
    def detect(self, images: list[Tensor], proposals: None = None) -> list[Detections]:
        assert not self.training
        assert proposals is None
        return [self._detect(image) for image in images]

    def _detect(self, image: Tensor) -> Detections:
        ys, xs = torch.where(image.amax(0) > 127)
        box = torch.stack([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])
        label = 1 if image[0].sum() > image[1].sum() else 2
        return Detections(
            boxes=box[None].float(),
            labels=torch.tensor([label]),
            scores=torch.tensor([0.9]),
            valid=torch.tensor([True]),
            mask_probs=torch.ones(1, 8, 8),
        )


def new_toy(seed: int = 0, noise: float = 0.1) -> ToyDetector:
    """Return a toy detector with random weights."""
    torch.manual_seed(seed)
    return ToyDetector(noise=noise)


def interrupt() -> None:
    raise KeyboardInterrupt


def call_at(model: ToyDetector, number: int, action: Callable[[], object]) -> ToyDetector:
    """Call `action` before the given call, from 1, of the model's forward pass."""
    forward, calls = model.forward, []

    def counted(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == number:
            action()
        return forward(*args)

    model.forward = counted  # type: ignore[method-assign]
    return model


def read_metrics(folder: str | Path, key: str = "loss") -> list[dict[str, Any]]:
    """Read the lines of metrics.jsonl that have a key."""
    lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if key in row]


def read_final(folder: str | Path) -> Checkpoint:
    """Read the final checkpoint of a run."""
    return read_checkpoint(Path(folder) / "model_final.pth")


def without_times(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.endswith(("time", "eta_s"))}


def assert_equal(actual: Any, expected: Any) -> None:
    """Compare containers of tensors, numbers and strings bit for bit."""
    if isinstance(expected, Tensor):
        assert torch.equal(actual, expected)
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        assert_equal([actual[key] for key in expected], list(expected.values()))
    elif isinstance(expected, list):
        for pair in zip(actual, expected, strict=True):
            assert_equal(*pair)
    else:
        assert actual == expected
