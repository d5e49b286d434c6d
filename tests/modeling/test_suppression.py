"""Each method against one that takes box by box, in plain numbers."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
import torch
from torch.nn import functional as F

from detlite.modeling.build import build_model
from detlite.modeling.postprocessing import Suppression, build_suppression, suppress
from detlite.structures.instances import Detections, PredictedBoxes
from detlite.structures.padding import fixed_shapes, varying_shapes

METHODS = ["nms", "soft-linear", "soft-gaussian", "voting", "fusion"]
Box = tuple[float, int, list[float]]  # score, label, xyxy


def crowd(objects: int = 8, around: int = 6, labels: int = 2) -> PredictedBoxes:
    """Boxes of one image in clusters, with scores that all differ."""
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


def rule_of(method: str, **rule) -> Suppression:
    return Suppression(0.5, method, **rule)


def iou(a: list[float], b: list[float]) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    both = max(width, 0) * max(height, 0)
    return both / (sum((x[2] - x[0]) * (x[3] - x[1]) for x in (a, b)) - both)


def mean(boxes: list[Box]) -> list[float]:
    total = sum(score for score, _, _ in boxes)
    return [sum(score * box[side] for score, _, box in boxes) / total for side in range(4)]


def slowly(boxes: list[Box], rule: Suppression, most: int = 1000, views: int = 1) -> list[Box]:
    thresh = rule.iou_thresh
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
    return sorted(result, reverse=True)[:most]


def as_list(record: PredictedBoxes | Detections, image: int = 0) -> list[Box]:
    own = record[image][record.valid[image]]
    columns = (own.scores.tolist(), own.labels.tolist(), own.boxes.tolist())
    return list(zip(*columns, strict=True))


def assert_close(found: list[Box], expected: list[Box]) -> None:
    assert [label for _, label, _ in found] == [label for _, label, _ in expected]
    for column in (0, 2):
        torch.testing.assert_close(
            torch.tensor([box[column] for box in found]),
            torch.tensor([box[column] for box in expected]),
        )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("most", [5, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_box_by_box(method, most, seed, device):
    torch.manual_seed(seed)
    candidates, rule = crowd(), rule_of(method)
    found = suppress(candidates.to(device), rule, most).to("cpu")
    expected = slowly(as_list(candidates), rule, most)
    assert 0 < len(expected) <= most
    assert_close(as_list(found), expected)


def batch_of(*images: PredictedBoxes, padding: float = 0.0) -> PredictedBoxes:
    """Several images in one batch, padded to one more than the fullest has."""
    most = 1 + max(one.valid.shape[1] for one in images)
    columns = []
    for name, value in (("boxes", padding), ("scores", padding), ("labels", 1), ("valid", False)):
        rows = [getattr(one, name)[0] for one in images]
        columns.append(
            torch.stack(
                [
                    F.pad(row, [0, 0] * (row.ndim - 1) + [0, most - len(row)], value=value)
                    for row in rows
                ]
            )
        )
    return PredictedBoxes(*columns)


@pytest.mark.parametrize("padding", [0.0, 1e6, float("inf"), float("nan")])
@pytest.mark.parametrize("method", METHODS)
def test_a_bigger_image_beside_it_changes_nothing(method, padding):
    images = [crowd(2), crowd(8), crowd(1)]
    rule = rule_of(method)
    together = suppress(batch_of(*images, padding=padding), rule, 100)
    for index, image in enumerate(images):
        alone = suppress(image, rule, 100)
        assert as_list(together, index) == as_list(alone)
        assert len(as_list(alone)) > 0


@pytest.mark.parametrize("most", [3, 20, 1000])
@pytest.mark.parametrize("method", METHODS)
def test_fixed_and_varying_shapes_agree(method, most):
    candidates, rule = batch_of(crowd(3), crowd(7)), rule_of(method)
    with fixed_shapes():
        fixed = suppress(candidates, rule, most)
    with varying_shapes():
        varying = suppress(candidates, rule, most)
    assert fixed.valid.shape == (2, min(most, 43))
    fullest = int(fixed.valid.sum(dim=1).max())
    assert varying.valid.shape == (2, fullest)
    assert torch.equal(fixed.valid[:, :fullest], varying.valid)
    for image in range(2):
        assert as_list(fixed, image) == as_list(varying, image)
    assert (fixed.valid.int().diff(dim=1) <= 0).all()  # padding last


@pytest.mark.parametrize(
    "rule",
    [{"sigma": 0.1}, {"sigma": 2.0}, {"min_score": 0.3}],
    ids=["narrow", "wide", "least score"],
)
def test_parameters_of_soft_nms(rule):
    candidates, rule = crowd(), rule_of("soft-gaussian", **rule)
    assert_close(as_list(suppress(candidates, rule, 1000)), slowly(as_list(candidates), rule))


@pytest.mark.parametrize("vote_iou", [0.3, 1.0])
def test_parameter_of_voting(vote_iou):
    candidates, rule = crowd(), rule_of("voting", vote_iou=vote_iou)
    found = suppress(candidates, rule, 1000)
    assert_close(as_list(found), slowly(as_list(candidates), rule))
    plain = suppress(candidates, rule_of("nms"), 1000)
    assert torch.equal(found.scores, plain.scores)
    if vote_iou == 1.0:  # no neighbour but the box itself
        torch.testing.assert_close(found.boxes, plain.boxes)


@pytest.mark.filterwarnings("error")
def test_fusion_leaves_empty_boxes_alone():
    boxes = torch.tensor([[[5.0, 5, 5, 5], [0, 0, 10, 10], [0, 0, 10, 10], [7, 7, 7, 7]]])
    scores, ones = torch.tensor([[0.9, 0.8, 0.6, 0.5]]), torch.ones(1, 4)
    predicted = PredictedBoxes(boxes, scores, ones.long(), ones.bool())
    found = suppress(predicted, Suppression(0.5, "fusion"), 9)
    torch.testing.assert_close(found.boxes[0], boxes[0, [0, 1, 3]])
    torch.testing.assert_close(found.scores[0], torch.tensor([0.9, 0.7, 0.5]))


@pytest.mark.parametrize("views", [2, 4, 10])
def test_fusion_trusts_what_many_views_show(views):
    candidates, rule = crowd(), rule_of("fusion", min_score=0.0)
    found = suppress(candidates, rule, 1000, views)
    assert_close(as_list(found), slowly(as_list(candidates), rule, views=views))


@pytest.mark.parametrize("method", METHODS)
def test_candidates_are_left_alone(method):
    candidates = crowd()
    before = candidates.map(torch.Tensor.clone)
    suppress(candidates, rule_of(method), 100)
    for field in fields(before):
        assert torch.equal(getattr(candidates, field.name), getattr(before, field.name))


@pytest.mark.parametrize("method", METHODS)
def test_mixed_precision_does_not_reach_coordinates(method):
    candidates, rule = crowd(), rule_of(method)
    with torch.autocast("cpu", torch.bfloat16):
        found = suppress(candidates, rule, 100)
    assert as_list(found) == as_list(suppress(candidates, rule, 100))


@pytest.mark.parametrize("shapes", [fixed_shapes, varying_shapes])
@pytest.mark.parametrize("method", METHODS)
def test_nothing_gives_nothing(method, shapes):
    candidates, rule = crowd(), rule_of(method)
    nobody = replace(candidates, valid=torch.zeros_like(candidates.valid))
    with shapes():
        for nothing in (candidates[:, :0], nobody):
            found = suppress(nothing, rule, 20)
            assert not found.valid.any()
            count = 20 if shapes is fixed_shapes and nothing is nobody else 0
            assert found.boxes.shape == (1, count, 4)
            assert found.scores.shape == found.labels.shape == found.valid.shape == (1, count)
            assert found.labels.dtype == torch.int64
    assert suppress(candidates, rule, 0).boxes.shape == (1, 0, 4)


@pytest.mark.parametrize("method", METHODS)
def test_the_same_box_many_times(method):
    box = torch.tensor([3.0, 4.0, 20.0, 30.0])
    same = PredictedBoxes(
        box.expand(1, 7, 4),
        torch.full((1, 7), 0.5),
        torch.ones(1, 7, dtype=torch.int64),
        torch.ones(1, 7, dtype=torch.bool),
    )
    found = suppress(same, rule_of(method), 100)
    torch.testing.assert_close(found.boxes[0, 0], box)
    assert found.scores[0, 0].item() == pytest.approx(0.5)
    assert found.valid.sum() == (4 if method == "soft-gaussian" else 1)


@pytest.mark.parametrize("method", METHODS)
def test_by_config(tiny_config, make_batch, method):
    images, _ = make_batch(2)
    keys = ["MODEL.ROI_HEADS.SCORE_THRESH", 0.0, "MODEL.ROI_HEADS.NMS", 0.1,
            "MODEL.ROI_HEADS.DETECTIONS_PER_IMG", 500,
            "TEST.NMS.METHOD", method, "TEST.NMS.SIGMA", 0.7, "TEST.NMS.VOTE_THRESH", 0.2,
            "TEST.NMS.MIN_SCORE", 0.01]  # fmt: skip
    cfg = tiny_config(*keys)
    rule = Suppression(0.1, method, 0.7, 0.2, 0.01)
    assert build_suppression(cfg, 0.1) == rule
    model = build_model(cfg).eval()
    assert model.postprocess.suppression == rule
    (found,) = model.detect(images)
    assert len(found.boxes) > 0
    model.postprocess = replace(model.postprocess, suppression=Suppression(0.1))
    (plain,) = model.detect(images)
    same = found.boxes.shape == plain.boxes.shape and torch.equal(found.boxes, plain.boxes)
    assert same == (method == "nms")
