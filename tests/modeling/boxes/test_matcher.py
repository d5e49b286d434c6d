import dataclasses

import pytest
import torch
from torch import Tensor

from detlite.modeling.boxes.matcher import BACKGROUND, IGNORE, Matcher
from detlite.structures import boxes as box_ops
from detlite.structures.instances import GroundTruth
from tests.builders import padded_gt, random_boxes

each_mode = pytest.mark.parametrize("allow_low_quality", [False, True])


def intervals(*ends: tuple[float, float]) -> Tensor:
    """Return boxes of height 1, whose IoUs are those of intervals."""
    return torch.tensor([[start, 0.0, end, 1.0] for start, end in ends])


def reference_match(truth: Tensor, candidates: Tensor, matcher: Matcher) -> list[int]:
    if not len(truth):
        return [BACKGROUND] * len(candidates)
    iou = box_ops.iou(truth, candidates).tolist()
    matched = []
    for candidate in range(len(candidates)):
        column = [row[candidate] for row in iou]
        best = max(column)
        index = column.index(best)
        if best >= matcher.foreground:
            matched.append(index)
        else:
            matched.append(BACKGROUND if best < matcher.background else IGNORE)
        if matcher.allow_low_quality_matches and any(row[candidate] == max(row) > 0 for row in iou):
            matched[-1] = index
    return matched


@each_mode
@pytest.mark.parametrize("thresholds", [(0.7, 0.3), (0.5, 0.5), (0.95, 0.1)])
def test_match_equals_a_loop_over_candidates(allow_low_quality, thresholds):
    matcher = Matcher(*thresholds, allow_low_quality)
    truth = [random_boxes(5), random_boxes(2), random_boxes(0)]
    candidates = random_boxes(40)
    candidates[7] = torch.tensor([80.0, 80, 120, 120])
    truth[0][2] = torch.tensor([110.0, 110, 130, 130])  # has only a low-quality match
    truth[0][4] = torch.tensor([200.0, 200, 210, 210])  # overlaps nothing
    matched = matcher(padded_gt(*truth), candidates)
    assert matched.dtype == torch.int64
    for boxes, own in zip(truth, matched, strict=True):
        assert own.tolist() == reference_match(boxes, candidates, matcher)
    assert (matched[0] == 2).any() == allow_low_quality


def test_thresholds_include_foreground_and_exclude_background():
    candidates = intervals((0, 6.9), (0, 7), (0, 3), (0, 2.9))
    matched = Matcher(0.7, 0.3)(padded_gt(intervals((0, 10))), candidates)
    assert matched.tolist() == [[IGNORE, 0, IGNORE, BACKGROUND]]


def test_low_quality_matches_include_ties():
    truth, candidates = intervals((0, 10), (8, 14)), intervals((0, 2), (8, 10), (10, 14))
    # Candidates 0 and 1 are the best of ground truth 0, but 1 overlaps ground truth 1 more.
    matched = Matcher(0.7, 0.3, allow_low_quality_matches=True)(padded_gt(truth), candidates)
    assert matched.tolist() == [[0, 1, 1]]


@each_mode
@pytest.mark.parametrize("thresholds", [(0.7, 0.3), (0.0, 0.0)])
def test_without_ground_truth_all_is_background(allow_low_quality, thresholds):
    matcher = Matcher(*thresholds, allow_low_quality)
    padding = GroundTruth(torch.zeros(1, 2, 4), torch.zeros(1, 2))
    for truth in (padded_gt(random_boxes(0)), padding):
        assert matcher(truth, random_boxes(3)).tolist() == [[BACKGROUND] * 3]


def test_padding_has_no_effect():
    matcher, boxes, candidates = Matcher(0.5, 0.3, True), random_boxes(3), random_boxes(20)
    padded = padded_gt(boxes, random_boxes(9))
    padded.boxes[0, 3:] = candidates[:6]
    assert torch.equal(matcher(padded, candidates)[:1], matcher(padded_gt(boxes), candidates))


def test_invalid_candidates_are_ignored():
    matcher, truth, candidates = (
        Matcher(0.5, 0.3),
        padded_gt(random_boxes(3)),
        random_boxes(20),
    )
    valid = torch.rand(1, 20) < 0.5
    every, some = matcher(truth, candidates), matcher(truth, candidates, valid)
    assert torch.equal(some[valid], every[valid])
    assert (some[~valid] == IGNORE).all()
    assert (every[~valid] != IGNORE).any()


def test_boxes_half_inside_an_ignored_region_are_not_background():
    truth = padded_gt(intervals((0, 10)), intervals((50, 60)))
    regions = torch.stack([intervals((20, 30), (40, 45)), torch.zeros(2, 4)])
    truth = dataclasses.replace(truth, ignored=regions)
    candidates = intervals((0, 10), (20, 30), (25, 35), (26, 36), (40, 44), (70, 80))
    matched = Matcher(0.5, 0.5)(truth, candidates)
    none = BACKGROUND
    assert matched[0].tolist() == [0, IGNORE, IGNORE, none, IGNORE, none]
    assert matched[1].tolist() == [none] * 6
    inside = dataclasses.replace(truth, ignored=intervals((0, 100))[None].repeat(2, 1, 1))
    assert Matcher(0.5, 0.5)(inside, candidates)[0].tolist() == [0] + [IGNORE] * 5
