from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torchvision.ops import box_iou, clip_boxes_to_image, nms

from detlite.conventions import CONVENTIONS
from detlite.modeling.boxes.suppression import MIN_SCORE, SIGMA, VOTE_IOU, Suppression, suppress
from detlite.modeling.build import build_model
from detlite.modeling.postprocessing import Postprocess, build_postprocess
from detlite.structures import boxes as box_ops
from detlite.structures.instances import Detections, PredictedBoxes

METHODS = ["nms", "soft-linear", "soft-gaussian", "voting"]


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


def as_rows(result: PredictedBoxes | Detections, image: int = 0) -> Tensor:
    """Return boxes, scores and labels [N, 6] of an image."""
    own = result[image][result.valid[image]]
    return torch.column_stack([own.boxes, own.scores, own.labels])


def soft_scores(overlap: Tensor, scores: Tensor, rule: Suppression) -> Tensor:
    """Lower the scores by the overlaps with boxes of higher ones, the highest first."""
    scores, left = scores.clone(), torch.ones_like(scores, dtype=torch.bool)
    while left.any():
        best = torch.where(left, scores, -1).argmax()
        left[best] = False
        if rule.method == "soft-gaussian":
            factor = torch.exp(-overlap[best].square() / SIGMA)
        else:
            factor = torch.where(overlap[best] > rule.iou_thresh, 1 - overlap[best], 1.0)
        scores = torch.where(left, scores * factor, scores)
    return scores


def reference(one: PredictedBoxes, rule: Suppression, limit: int) -> Tensor:
    """Suppress the boxes of an image label by label."""
    rows = []
    for label in one.labels[0].unique():
        own = one.labels[0] == label
        boxes, scores = one.boxes[0, own], one.scores[0, own]
        overlap = box_iou(boxes, boxes)
        if rule.method.startswith("soft"):
            scores = soft_scores(overlap, scores, rule)
            kept = scores > MIN_SCORE
        else:
            kept = nms(boxes, scores, rule.iou_thresh)
        if rule.method == "voting":
            weights = scores * (overlap >= VOTE_IOU)
            boxes = weights @ boxes / weights.sum(dim=1, keepdim=True)
        rows.append(torch.column_stack([boxes, scores, label.expand_as(scores)])[kept])
    every = torch.cat(rows)
    return every[every[:, 4].argsort(descending=True)][:limit]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("limit", [5, 1000])
def test_suppression_of_each_label(method, limit, device):
    candidates, rule = crowd(), Suppression(0.5, method)
    detections = suppress(candidates.to(device), rule, limit, False).to("cpu")
    expected = reference(candidates, rule, limit)
    assert 0 < len(expected) <= limit
    torch.testing.assert_close(as_rows(detections), expected)


@pytest.mark.parametrize("method", METHODS)
def test_class_agnostic_suppression_ignores_labels(method):
    torch.manual_seed(4)
    candidates = crowd(labels=3)
    one_label = replace(candidates, labels=torch.ones_like(candidates.labels))
    rule = Suppression(0.5, method, class_agnostic=True)
    rows = as_rows(suppress(candidates, rule, 20, False))
    expected = as_rows(suppress(one_label, Suppression(0.5, method), 20, False))
    torch.testing.assert_close(rows[:, :5], expected[:, :5])
    assert set(rows[:, 5].tolist()) == {1, 2, 3}


def batch_of(*images: PredictedBoxes, padding: float | None = 0.0) -> PredictedBoxes:
    """Join images to a batch, padded by a value, or by copies of the first box of each image."""
    limit = 1 + max(one.valid.shape[1] for one in images)

    def pad(row: Tensor, value: float | None) -> Tensor:
        rest = row[:1].repeat(limit - len(row), *[1] * (row.ndim - 1))
        return torch.cat([row, rest if value is None else torch.full_like(rest, value)])

    values = {"boxes": padding, "scores": padding, "labels": None, "valid": False}
    columns = [
        torch.stack([pad(getattr(one, name)[0], value) for one in images])
        for name, value in values.items()
    ]
    return PredictedBoxes(*columns)


@pytest.mark.parametrize("padding", [0.0, 1e6, float("nan"), None])
@pytest.mark.parametrize("method", METHODS)
def test_images_of_a_batch_are_independent(method, padding):
    images = [crowd(2), crowd(8), crowd(1)]
    rule = Suppression(0.5, method)
    together = suppress(batch_of(*images, padding=padding), rule, 100, False)
    for index, image in enumerate(images):
        alone = as_rows(suppress(image, rule, 100, False))
        torch.testing.assert_close(as_rows(together, index), alone)
        assert len(alone) > 0


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
