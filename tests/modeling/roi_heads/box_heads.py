"""Small box heads, whose features are the RoIs."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from detlite.conventions import CONVENTIONS
from detlite.modeling.boxes.box_coder import BoxCoder
from detlite.modeling.boxes.losses import BoxLoss
from detlite.modeling.postprocessing import Postprocess, Suppression
from detlite.modeling.preprocessing import prepare_proposals
from detlite.modeling.roi_heads.box_head import BoxHead
from detlite.modeling.roi_heads.cascade import RepeatedBoxHead
from detlite.modeling.roi_heads.predictors import BoxPredictor
from detlite.structures.instances import Detections, Samples

CLASSES = 3  # with background
CODER = BoxCoder((10.0, 10.0, 5.0, 5.0))
SMOOTH_L1 = BoxLoss()
OURS = CONVENTIONS["detlite"]
POSTPROCESS = Postprocess(OURS, Suppression(0.5), detections_per_image=100)
SIZES = torch.tensor([[60, 80], [20, 20]])  # some boxes lie outside the second image

each_mode = pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])


class RoIExtractor(nn.Module):
    """Returns the RoIs as features."""

    def forward(self, features, rois):
        return rois / 40


class LinearPredictor(nn.Module):
    """Predicts different values for each box."""

    classification_loss = BoxPredictor.classification_loss

    def __init__(self, regressions: int) -> None:
        super().__init__()
        self.logits = nn.Linear(5, CLASSES)
        self.deltas = nn.Linear(5, 4 * regressions)
        for layer in (self.logits, self.deltas):
            nn.init.normal_(layer.weight, std=2)

    def forward(self, x):
        return self.logits(x), self.deltas(x)


class ConstantPredictor(nn.Module):
    """Returns constant predictions."""

    def __init__(self, logits: torch.Tensor, deltas: torch.Tensor) -> None:
        super().__init__()
        self.predictions = logits, deltas

    def forward(self, x):
        return self.predictions


def make_head(
    agnostic: bool = False,
    loss: BoxLoss = SMOOTH_L1,
    score_thresh: float = 0.05,
    ious: tuple[float, ...] = (),
) -> BoxHead:
    """Make a box head, or one with a pass for each of `ious`."""
    options = {
        "extractor": RoIExtractor(), "predictor": LinearPredictor(2 if agnostic else CLASSES),
        "box_coder": CODER, "box_loss": loss,
        "class_agnostic": agnostic, "score_thresh": score_thresh, "convention": OURS,
    }  # fmt: skip
    return RepeatedBoxHead(ious, **options) if ious else BoxHead(**options)


def predictions_of(
    head: BoxHead, image: int, boxes: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits [N, K] and deltas [N, Q, 4] of boxes of an image."""
    with torch.no_grad():
        logits, deltas = head.predictor(F.pad(boxes, (1, 0), value=float(image)) / 40)
    return logits, deltas.view(len(boxes), -1, 4)


def detect(
    head: BoxHead,
    proposals: list[torch.Tensor],
    static: bool = False,
    postprocess: Postprocess = POSTPROCESS,
) -> list[Detections]:
    inputs, sizes = prepare_proposals(proposals, len(proposals)), SIZES[: len(proposals)]
    with torch.no_grad():
        predicted = head.predict([], inputs, sizes, static)
        return postprocess(predicted, sizes, static).per_image()


def make_samples(
    boxes: list[torch.Tensor], labels: list[list[int]], gt: list[list[int]]
) -> Samples:
    limit = max(1, *map(len, boxes))

    def pad(lists, value):
        tensors = (torch.tensor(own, dtype=torch.int64) for own in lists)
        return torch.stack([F.pad(own, (0, limit - len(own)), value=value) for own in tensors])

    return Samples(
        torch.stack([F.pad(own, (0, 0, 0, limit - len(own))) for own in boxes]),
        pad(labels, -1), pad(gt, 0),
    )  # fmt: skip
