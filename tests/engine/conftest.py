"""A detector that can be computed by hand, pictures on which it is right, and harder ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch.nn import functional as F
from yacs.config import CfgNode

from detlite.config import load_config
from detlite.conventions import CONVENTIONS
from detlite.data import build_dataset, build_train_dataset
from detlite.structures.instances import Detections

ROOT = Path(__file__).parents[2]
KEYPOINT_NAMES = ["left_top", "right_top", "middle", "left_bottom", "right_bottom"]
KEYPOINT_COLOURS = [(255, 60, 60), (60, 255, 60), (250, 250, 250), (60, 60, 255), (250, 250, 0)]


class ToyDetector(nn.Module):
    """Has the interface of a `DetectionModel`. Detects the one red (1) or green (2) block exactly.

    Without `noise` nothing in it is random, and its batch norm only scales.
    """

    takes_proposals = False
    needs = ("masks",)

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

    @property
    def device(self) -> torch.device:
        return self.body.weight.device

    @property
    def backbone(self) -> SimpleNamespace:
        """What is pretrained in other detectors."""
        return SimpleNamespace(body=nn.ModuleList([self.body, self.norm]))

    def forward(self, images: list[Tensor], targets: list[dict[str, Any]]) -> dict[str, Tensor]:
        pixels = torch.stack([F.interpolate(i[None] / 255, (8, 8))[0] for i in images])
        if not self.noise:
            self.norm.eval()
        features = self.norm(self.body(pixels)).relu().mean((2, 3))
        # Random, as the choice of proposals is.
        features = features + self.noise * torch.rand_like(features)
        predictor = self.roi_heads["box"]["predictor"]
        labels = torch.stack([target["labels"][0] for target in targets])
        boxes = torch.stack([target["boxes"][0] for target in targets]) / 32
        return {
            "loss_classifier": F.cross_entropy(predictor["cls_score"](features), labels),
            "loss_box": F.l1_loss(predictor["bbox_pred"](features), boxes),
        }

    @torch.no_grad()
    def detect(self, images: list[Tensor], given: None = None) -> list[Detections]:
        assert not self.training
        assert given is None
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


@pytest.fixture
def toy() -> ToyDetector:
    """A toy detector with weights from seed 0."""
    torch.manual_seed(0)
    return ToyDetector()


@pytest.fixture
def blocks(tmp_path: Path) -> Path:
    """A folder with a data set of 7 pictures, each with one block, red or green."""
    folder = tmp_path / "blocks"
    folder.mkdir()
    rng = np.random.default_rng(0)
    images, annotations = [], []
    for number in range(7):
        width, height = 24, 20 + 2 * number
        x, y = (int(v) for v in rng.integers(2, 6, 2))
        w, h = (int(v) for v in rng.integers(8, 14, 2))
        pixels = np.zeros((height, width, 3), np.uint8)
        pixels[y : y + h, x : x + w, number % 2] = 255
        name = f"{number}.png"
        Image.fromarray(pixels).save(folder / name)
        images.append({"id": 100 + number, "file_name": name, "height": height, "width": width})
        annotations.append(
            {
                "id": number + 1,
                "image_id": 100 + number,
                "category_id": (7, 9)[number % 2],
                "bbox": [x, y, w, h],
                "segmentation": [[x, y, x + w, y, x + w, y + h, x, y + h]],
            }
        )
    categories = [{"id": 7, "name": "red"}, {"id": 9, "name": "green"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "blocks.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def make_cfg(blocks: Path, tmp_path: Path) -> Callable[..., Any]:
    """Loads a config that trains and tests on `blocks`; takes further overrides."""

    def make(*opts: Any) -> Any:
        entry = {"annotations": "blocks.json", "images": "."}
        defaults = [
            "OUTPUT_DIR", str(tmp_path / "run"), "MODEL.DEVICE", "cpu", "MODEL.MASK_ON", True,
            "DATASETS.ROOT", str(blocks), "DATASETS.TRAIN", ("train",), "DATASETS.TEST", ("val",),
            "DATASETS.CATALOG", [{"name": "train", **entry}, {"name": "val", **entry}],
            "DATALOADER.NUM_WORKERS", 0, "MODEL.ROI_BOX_HEAD.NUM_CLASSES", 3,
            "INPUT.MIN_SIZE_TRAIN", (20, 30), "INPUT.MIN_SIZE_TEST", 40, "SOLVER.STEPS", (3,),
            "SOLVER.MAX_ITER", 4, "SOLVER.IMS_PER_BATCH", 2, "SOLVER.BASE_LR", 0.1,
            "SOLVER.WARMUP_ITERS", 2, "SOLVER.LOG_PERIOD", 1, "TEST.IMS_PER_BATCH", 2,
            "TEST.OPTIMIZE", False,  # the toy has no parts
        ]  # fmt: skip
        cfg = load_config(None, [*defaults, *opts])
        Path(cfg.OUTPUT_DIR).mkdir(exist_ok=True)
        return cfg

    return make


@pytest.fixture
def make_sets() -> Callable[[Any], tuple[Any, list[Any]]]:
    """The training set and the test sets of a config."""

    def make(cfg: Any) -> tuple[Any, list[Any]]:
        tests = [build_dataset(cfg, name, train=False) for name in cfg.DATASETS.TEST]
        return build_train_dataset(cfg), tests

    return make


@pytest.fixture(scope="session")
def plates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of grey plates of two shades, with a dot of its own colour for each keypoint."""
    folder = tmp_path_factory.mktemp("plates")
    rng = np.random.default_rng(0)
    images, annotations = [], []
    for number in range(1, 7):
        picture = Image.fromarray(rng.integers(0, 40, (64, 80, 3), np.uint8))
        draw = ImageDraw.Draw(picture)
        for half in range(2):
            x, y = 40 * half + int(rng.integers(1, 8)), int(rng.integers(2, 28))
            width, height = int(rng.integers(24, 31)), int(rng.integers(24, 33))
            category = int(rng.integers(2))
            draw.rectangle((x, y, x + width - 1, y + height - 1), fill=(110 + 60 * category,) * 3)
            keypoints = []
            places = [(0.2, 0.2), (0.8, 0.2), (0.5, 0.5), (0.2, 0.8), (0.8, 0.8)]
            for (across, down), colour in zip(places, KEYPOINT_COLOURS, strict=True):
                point = int(x + across * width), int(y + down * height)
                draw.rectangle((*(p - 2 for p in point), *(p + 2 for p in point)), fill=colour)
                keypoints += [*point, 2]
            right, bottom = x + width, y + height
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": 1 + category,
                    "bbox": [x, y, width, height],
                    "area": width * height,
                    "segmentation": [[x, y, right, y, right, bottom, x, bottom]],
                    "keypoints": keypoints,
                    "num_keypoints": len(places),
                    "iscrowd": 0,
                }
            )
        picture.save(folder / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "height": 64, "width": 80})
    categories = [
        {"id": number, "name": name, "keypoints": KEYPOINT_NAMES, "skeleton": []}
        for number, name in ((1, "dark"), (2, "light"))
    ]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "plates.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def plates_config(
    tiny_config: Callable[..., CfgNode], plates: Path, tmp_path: Path, device: str
) -> Callable[..., CfgNode]:
    """Loads a config that trains and tests a tiny model on `plates`; takes further overrides."""

    def load(*opts: Any, **kinds: Any) -> CfgNode:
        entry = {"name": "plates", "annotations": "plates.json", "images": "."}
        return tiny_config(
            "MODEL.DEVICE", device, "OUTPUT_DIR", str(tmp_path),
            "DATASETS.ROOT", str(plates), "DATASETS.CATALOG", [entry],
            "DATASETS.TRAIN", ("plates",), "DATASETS.TEST", ("plates",),
            "MODEL.ROI_BOX_HEAD.NUM_CLASSES", 3, "DATALOADER.NUM_WORKERS", 0,
            "INPUT.MIN_SIZE_TRAIN", (64,), "INPUT.MIN_SIZE_TEST", 64, "SOLVER.OPTIMIZER", "AdamW",
            "SOLVER.BASE_LR", 2e-3, "SOLVER.WARMUP_ITERS", 4, "SOLVER.STEPS", (),
            "SOLVER.IMS_PER_BATCH", 2, "SOLVER.MAX_ITER", 16, "SOLVER.LOG_PERIOD", 1,
            "MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES", 5, "MODEL.ROI_KEYPOINT_HEAD.RESOLUTION", 56,
            "MODEL.ROI_KEYPOINT_HEAD.SHARE_BOX_FEATURE_EXTRACTOR", False,
            "MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS", (16, 16), *opts, **kinds,
        )  # fmt: skip

    return load


@pytest.fixture
def in_two_processes(tmp_path: Path, free_port: Callable[[], int]) -> Callable[[str], str]:
    """Runs a script in tmp_path in two processes of one thread; returns what the first printed."""

    def run(script: str) -> str:
        (tmp_path / "script.py").write_text(script)
        env = os.environ | {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": "2",
        }
        env |= {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'engine'}",
        }
        processes = [
            subprocess.Popen(
                [sys.executable, "script.py"],
                cwd=tmp_path,
                env=env | {"RANK": str(number), "LOCAL_RANK": str(number)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number in range(2)
        ]
        outputs = [process.communicate(timeout=300) for process in processes]
        assert [process.returncode for process in processes] == [0, 0], outputs
        return outputs[0][0]

    return run
