import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import clip_boxes_to_image

from detlite.conventions import CONVENTIONS
from detlite.modeling.boxes.suppression import (
    MIN_SCORE,
    SIGMA,
    VOTE_IOU,
    Suppression,
    suppress,
)
from detlite.modeling.build import build_model
from detlite.modeling.postprocessing import Postprocess, build_postprocess
from detlite.structures import boxes as box_ops
from detlite.structures.instances import Detections, PredictedBoxes

METHODS = ["nms", "soft-linear", "soft-gaussian", "voting"]
Box = tuple[float, int, list[float]]  # score, label, xyxy


def crowd(objects: int = 8, around: int = 6, labels: int = 2) -> PredictedBoxes:
    """Return boxes of an image in clusters, with different scores."""
    corner = torch.rand(objects, 2) * 80
    true = torch.cat([corner, corner + 10 + torch.rand(objects, 2) * 30], dim=1)
    boxes = true.repeat(around, 1) + torch.randn(objects * around, 4) * 2.5
    count = len(boxes)
    return PredictedBoxes(
        boxes[None],
        ((torch.randperm(count) + 1) / (count + 2))[None],
        torch.randint(1, labels + 1, (objects,)).repeat(around)[None],
        torch.ones(1, count, dtype=torch.bool),
    )


def make_rule(method: str, **rule) -> Suppression:
    return Suppression(0.5, method, **rule)


def iou(a: list[float], b: list[float]) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    intersection = max(width, 0) * max(height, 0)
    return intersection / (sum((x[2] - x[0]) * (x[3] - x[1]) for x in (a, b)) - intersection)


def mean(boxes: list[Box]) -> list[float]:
    total = sum(score for score, _, _ in boxes)
    return [sum(score * box[side] for score, _, box in boxes) / total for side in range(4)]


def reference(boxes: list[Box], rule: Suppression, limit: int = 1000) -> list[Box]:
    """Suppress box by box."""
    thresh = rule.iou_thresh
    result: list[Box] = []
    for target_label in {label for _, label, _ in boxes}:
        own = sorted((b for b in boxes if b[1] == target_label), reverse=True)
        left = own
        while left:
            best, *left = sorted(left, reverse=True)
            if rule.method == "nms":
                result.append(best)
            elif rule.method == "voting":
                near = [box for box in own if iou(box[2], best[2]) >= VOTE_IOU]
                result.append((best[0], target_label, mean(near)))
            else:
                result.append(best)
            if rule.method.startswith("soft"):
                lowered = []
                for score, label, box in left:
                    overlap = iou(box, best[2])
                    if rule.method == "soft-gaussian":
                        score *= math.exp(-(overlap**2) / SIGMA)
                    elif overlap > thresh:
                        score *= 1 - overlap
                    lowered.append((score, label, box))
                left = lowered
            else:
                left = [box for box in left if iou(box[2], best[2]) <= thresh]
    if rule.method.startswith("soft"):
        result = [box for box in result if box[0] > MIN_SCORE]
    return sorted(result, reverse=True)[:limit]


def as_list(record: PredictedBoxes | Detections, image: int = 0) -> list[Box]:
    own = record[image][record.valid[image]]
    columns = (own.scores.tolist(), own.labels.tolist(), own.boxes.tolist())
    return list(zip(*columns, strict=True))


def assert_close(detections: list[Box], expected: list[Box]) -> None:
    assert [label for _, label, _ in detections] == [label for _, label, _ in expected]
    for column in (0, 2):
        torch.testing.assert_close(
            torch.tensor([box[column] for box in detections]),
            torch.tensor([box[column] for box in expected]),
        )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("limit", [5, 1000])
def test_suppress_matches_a_loop_over_boxes(method, limit, device):
    candidates, rule = crowd(), make_rule(method)
    detections = suppress(candidates.to(device), rule, limit, False).to("cpu")
    expected = reference(as_list(candidates), rule, limit)
    assert 0 < len(expected) <= limit
    assert_close(as_list(detections), expected)


@pytest.mark.parametrize("method", METHODS)
def test_class_agnostic_suppression_ignores_labels(method):
    torch.manual_seed(4)
    candidates = crowd(labels=3)
    one_label = replace(candidates, labels=torch.ones_like(candidates.labels))
    detections = suppress(candidates, make_rule(method, class_agnostic=True), 20, False)
    expected = as_list(suppress(one_label, make_rule(method), 20, False))
    rows = as_list(detections)
    assert_close([(score, 1, box) for score, _, box in rows], expected)
    assert {label for _, label, _ in rows} == {1, 2, 3}


def batch_of(*images: PredictedBoxes, padding: float = 0.0) -> PredictedBoxes:
    """Join images to a batch, padded to one more than the largest number of boxes."""
    limit = 1 + max(one.valid.shape[1] for one in images)

    def pad(row: Tensor, value: float) -> Tensor:
        return F.pad(row, [0, 0] * (row.ndim - 1) + [0, limit - len(row)], value=value)

    values = {"boxes": padding, "scores": padding, "labels": 1, "valid": False}
    columns = [
        torch.stack([pad(getattr(one, name)[0], value) for one in images])
        for name, value in values.items()
    ]
    return PredictedBoxes(*columns)


@pytest.mark.parametrize("padding", [0.0, 1e6, float("nan")])
@pytest.mark.parametrize("method", METHODS)
def test_images_of_a_batch_are_independent(method, padding):
    images = [crowd(2), crowd(8), crowd(1)]
    rule = make_rule(method)
    together = suppress(batch_of(*images, padding=padding), rule, 100, False)
    for index, image in enumerate(images):
        alone = suppress(image, rule, 100, False)
        assert_close(as_list(together, index), as_list(alone))
        assert len(as_list(alone)) > 0


SIZES = torch.tensor([[40, 60], [30, 30]])  # height, width
DEFAULT = Postprocess(CONVENTIONS["detlite"], Suppression(0.5), 100)


def candidates(count: int = 60) -> PredictedBoxes:
    """Return boxes of two images; some cross the border or lie outside."""
    corner = torch.rand(2, count, 2) * 70 - 10
    valid = torch.rand(2, count) < torch.tensor([[0.9], [0.6]])
    return PredictedBoxes(
        torch.cat([corner, corner + 1 + torch.rand(2, count, 2) * 25], dim=2),
        torch.rand(2, count),
        torch.randint(1, 3, (2, count)),
        valid,
    )


def as_rows(result: PredictedBoxes | Detections, image: int) -> Tensor:
    own = result[image][result.valid[image]]
    return torch.cat([own.boxes, own.scores[:, None], own.labels[:, None]], dim=1)


@pytest.mark.parametrize("min_size", [0.0, 4.0, -1.0])
@pytest.mark.parametrize("clip", ["before-nms", "after-nms"])
def test_clipping_and_small_boxes(min_size, clip):
    inputs = candidates()

    def clipped(record):
        sizes = [tuple(size) for size in SIZES.tolist()]
        pairs = zip(record.boxes, sizes, strict=True)
        boxes = torch.stack([clip_boxes_to_image(own, size) for own, size in pairs])
        large = box_ops.has_min_size(boxes, min_size) if min_size >= 0 else True
        return replace(record, boxes=boxes, valid=record.valid & large)

    if clip == "before-nms":
        expected = suppress(clipped(inputs), Suppression(0.5), 100, False)
    else:
        expected = clipped(suppress(inputs, Suppression(0.5), 100, False))
    result = replace(DEFAULT, min_size=min_size, clip=clip)(inputs, SIZES, False)
    for image in range(2):
        torch.testing.assert_close(as_rows(result, image), as_rows(expected, image))
    assert (result.valid.int().diff(dim=1) <= 0).all()  # padding is last
    sides = result.boxes[result.valid][:, 2:] - result.boxes[result.valid][:, :2]
    assert (sides.min() <= 0) == (min_size < 0)


def test_build_postprocess(tiny_config):
    prefix = "MODEL.ROI_HEADS."
    keys = [prefix + "NMS", 0.3, prefix + "DETECTIONS_PER_IMG", 7, "TEST.NMS.METHOD", "voting",
            "MODEL.CONVENTION_OVERRIDE", ("detection_min_size=2.5",)]  # fmt: skip
    post = build_postprocess(tiny_config(*keys))
    assert post.suppression == Suppression(0.3, "voting")
    assert (post.detections_per_image, post.min_size, post.clip) == (7, 2.5, "before-nms")
    model = build_model(tiny_config(*keys))
    assert model.postprocess == post
    assert model.convention is model.postprocess.convention
