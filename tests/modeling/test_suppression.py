"""Each method against one that takes box by box, in plain numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from detlite.modeling.rcnn import build_model
from detlite.modeling.suppression import DetectionLimits, Suppression, suppress

METHODS = ["nms", "soft-linear", "soft-gaussian", "voting", "fusion"]
Box = tuple[float, int, list[float]]  # score, label, xyxy


def crowd(objects: int = 8, around: int = 6, labels: int = 2) -> dict[str, torch.Tensor]:
    """Boxes in clusters, with scores that all differ."""
    corner = torch.rand(objects, 2) * 80
    true = torch.cat([corner, corner + 10 + torch.rand(objects, 2) * 30], dim=1)
    boxes = true.repeat(around, 1) + torch.randn(objects * around, 4) * 2.5
    count = len(boxes)
    return {
        "boxes": boxes,
        "scores": (torch.randperm(count) + 1) / (count + 2),
        "labels": torch.randint(1, labels + 1, (objects,)).repeat(around),
    }


def limits_for(method: str, per_image: int = 100, **rule) -> DetectionLimits:
    return DetectionLimits(0.0, 0.5, per_image, suppression=Suppression(method, **rule))


def iou(a: list[float], b: list[float]) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    both = max(width, 0) * max(height, 0)
    return both / (sum((x[2] - x[0]) * (x[3] - x[1]) for x in (a, b)) - both)


def mean(boxes: list[Box]) -> list[float]:
    total = sum(score for score, _, _ in boxes)
    return [sum(score * box[side] for score, _, box in boxes) / total for side in range(4)]


def slowly(boxes: list[Box], limits: DetectionLimits, views: int = 1) -> list[Box]:
    rule, thresh = limits.suppression, limits.nms_thresh
    result: list[Box] = []
    for wanted in {label for _, label, _ in boxes}:
        everything = sorted((b for b in boxes if b[1] == wanted), reverse=True)
        if rule.method == "fusion":
            groups: list[list[Box]] = []
            for box in everything:
                overlaps = [iou(box[2], mean(group)) for group in groups]
                if overlaps and max(overlaps) > thresh:
                    groups[overlaps.index(max(overlaps))].append(box)
                else:
                    groups.append([box])
            for group in groups:
                score = sum(score for score, _, _ in group) / len(group)
                result.append((score * min(len(group), views) / views, wanted, mean(group)))
            continue
        left = everything
        while left:
            best, *left = sorted(left, reverse=True)
            if rule.method == "nms":
                result.append(best)
            elif rule.method == "voting":
                near = [box for box in everything if iou(box[2], best[2]) >= rule.vote_iou]
                result.append((best[0], wanted, mean(near)))
            else:
                result.append(best)
            if rule.method.startswith("soft"):
                lowered = []
                for score, label, box in left:
                    overlap = iou(box, best[2])
                    if rule.method == "soft-gaussian":
                        score *= math.exp(-(overlap**2) / rule.sigma)
                    elif overlap > thresh:
                        score *= 1 - overlap
                    lowered.append((score, label, box))
                left = lowered
            else:
                left = [box for box in left if iou(box[2], best[2]) <= thresh]
    if rule.method.startswith("soft") or rule.method == "fusion":
        result = [box for box in result if box[0] > rule.min_score]
    return sorted(result, reverse=True)[: limits.per_image]


def as_list(found: dict[str, torch.Tensor]) -> list[Box]:
    return list(zip(*(found[name].tolist() for name in ("scores", "labels", "boxes")), strict=True))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("per_image", [5, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_box_by_box(method, per_image, seed, device):
    torch.manual_seed(seed)
    candidates = crowd()
    limits = limits_for(method, per_image)
    found = suppress({name: value.to(device) for name, value in candidates.items()}, limits)
    found = {name: value.cpu() for name, value in found.items()}
    expected = slowly(as_list(candidates), limits)
    assert 0 < len(expected) <= per_image
    assert found["labels"].tolist() == [label for _, label, _ in expected]
    torch.testing.assert_close(found["scores"], torch.tensor([score for score, _, _ in expected]))
    torch.testing.assert_close(found["boxes"], torch.tensor([box for _, _, box in expected]))


@pytest.mark.parametrize(
    "rule",
    [{"sigma": 0.1}, {"sigma": 2.0}, {"min_score": 0.3}],
    ids=["narrow", "wide", "least score"],
)
def test_parameters_of_soft_nms(rule):
    candidates, limits = crowd(), limits_for("soft-gaussian", **rule)
    found, expected = suppress(candidates, limits), slowly(as_list(candidates), limits)
    torch.testing.assert_close(found["scores"], torch.tensor([score for score, _, _ in expected]))


@pytest.mark.parametrize("vote_iou", [0.3, 1.0])
def test_parameter_of_voting(vote_iou):
    candidates, limits = crowd(), limits_for("voting", vote_iou=vote_iou)
    found, expected = suppress(candidates, limits), slowly(as_list(candidates), limits)
    torch.testing.assert_close(found["boxes"], torch.tensor([box for _, _, box in expected]))
    plain = suppress(candidates, limits_for("nms"))
    assert torch.equal(found["scores"], plain["scores"])
    if vote_iou == 1.0:  # no neighbour but the box itself
        torch.testing.assert_close(found["boxes"], plain["boxes"])


@pytest.mark.parametrize("views", [2, 4, 10])
def test_fusion_trusts_what_many_views_show(views):
    candidates, limits = crowd(), limits_for("fusion", min_score=0.0)
    found = suppress(candidates, limits, views)
    expected = slowly(as_list(candidates), limits, views)
    torch.testing.assert_close(found["scores"], torch.tensor([score for score, _, _ in expected]))


@pytest.mark.parametrize("method", METHODS)
def test_candidates_are_left_alone(method):
    candidates = crowd()
    before = {name: value.clone() for name, value in candidates.items()}
    suppress(candidates, limits_for(method))
    for name, value in before.items():
        assert torch.equal(candidates[name], value)


@pytest.mark.parametrize("method", METHODS)
def test_mixed_precision_does_not_reach_coordinates(method):
    candidates, limits = crowd(), limits_for(method)
    with torch.autocast("cpu", torch.bfloat16):
        found = suppress(candidates, limits)
    for name, value in suppress(candidates, limits).items():
        assert torch.equal(found[name], value)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_gives_nothing(method):
    nothing = {name: value[:0] for name, value in crowd().items()}
    found = suppress(nothing, limits_for(method))
    assert found["boxes"].shape == (0, 4)
    assert found["scores"].shape == found["labels"].shape == (0,)
    assert found["labels"].dtype == torch.int64


@pytest.mark.parametrize("method", METHODS)
def test_the_same_box_many_times(method):
    box = torch.tensor([[3.0, 4.0, 20.0, 30.0]])
    same = {
        "boxes": box.repeat(7, 1),
        "scores": torch.full((7,), 0.5),
        "labels": torch.ones(7, dtype=torch.int64),
    }
    found = suppress(same, limits_for(method))
    torch.testing.assert_close(found["boxes"][:1], box)
    assert found["scores"][0].item() == pytest.approx(0.5)
    assert len(found["scores"]) == (4 if method == "soft-gaussian" else 1)


@pytest.mark.parametrize("method", METHODS)
def test_by_config(tiny_config, make_batch, method):
    images, _ = make_batch(2)
    keys = ["MODEL.ROI_HEADS.SCORE_THRESH", 0.0, "MODEL.ROI_HEADS.NMS", 0.1,
            "MODEL.ROI_HEADS.DETECTIONS_PER_IMG", 500,
            "TEST.NMS.METHOD", method, "TEST.NMS.SIGMA", 0.7, "TEST.NMS.VOTE_THRESH", 0.2,
            "TEST.NMS.MIN_SCORE", 0.01]  # fmt: skip
    model = build_model(tiny_config(*keys)).eval()
    assert model.limits.suppression == Suppression(method, 0.7, 0.2, 0.01)
    (found,) = model.detect(images)
    assert len(found["boxes"]) > 0
    model.limits = replace(model.limits, suppression=Suppression())
    (plain,) = model.detect(images)
    same = found["boxes"].shape == plain["boxes"].shape and torch.equal(
        found["boxes"], plain["boxes"]
    )
    assert same == (method == "nms")
