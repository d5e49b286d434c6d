"""Matching against plain loops, candidate by candidate."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from detlite.modeling.sampler import BACKGROUND, IGNORE, Matcher
from detlite.structures import boxes as box_ops
from detlite.structures.instances import GroundTruth


def random_boxes(count: int) -> Tensor:
    corner = torch.rand(count, 2) * 30
    return torch.cat([corner, corner + 5 + torch.rand(count, 2) * 30], dim=1)


def truth_of(*boxes: Tensor) -> GroundTruth:
    """The boxes of each image, padded."""
    most = max(map(len, boxes))
    padded = torch.zeros(len(boxes), most, 4)
    labels = torch.zeros(len(boxes), most, dtype=torch.int64)
    for image, own in enumerate(boxes):
        padded[image, : len(own)] = own
        labels[image, : len(own)] = 1
    return GroundTruth(padded, labels)


def on_a_line(*intervals: tuple[float, float]) -> Tensor:
    """Boxes of height 1, whose overlaps are those of intervals."""
    return torch.tensor([[start, 0.0, end, 1.0] for start, end in intervals])


def match_slowly(truth: Tensor, candidates: Tensor, matcher: Matcher) -> list[int]:
    if not len(truth):
        return [BACKGROUND] * len(candidates)
    iou = box_ops.iou(truth, candidates).tolist()
    result = []
    for candidate in range(len(candidates)):
        column = [row[candidate] for row in iou]
        best = max(column)
        index = column.index(best)
        if best >= matcher.foreground:
            result.append(index)
        else:
            result.append(BACKGROUND if best < matcher.background else IGNORE)
        if matcher.allow_low_quality_matches and any(row[candidate] == max(row) > 0 for row in iou):
            result[-1] = index
    return result


@pytest.mark.parametrize("allow_low_quality_matches", [False, True])
@pytest.mark.parametrize("limits", [(0.7, 0.3), (0.5, 0.5), (0.95, 0.1)])
def test_candidate_by_candidate(allow_low_quality_matches, limits):
    matcher = Matcher(*limits, allow_low_quality_matches)
    truth = [random_boxes(5), random_boxes(2), random_boxes(0)]
    candidates = random_boxes(40)
    candidates[7] = torch.tensor([80.0, 80, 120, 120])
    truth[0][2] = torch.tensor([110.0, 110, 130, 130])  # which only `allow_low_quality_matches` serves
    truth[0][4] = torch.tensor([200.0, 200, 210, 210])  # which nothing overlaps
    found = matcher(truth_of(*truth), candidates)
    assert found.dtype == torch.int64
    for own, matched in zip(truth, found, strict=True):
        assert matched.tolist() == match_slowly(own, candidates, matcher)
    assert (found[0] == 2).any() == allow_low_quality_matches


def test_candidates_of_each_image():
    matcher, truth = Matcher(0.5, 0.4), [random_boxes(3), random_boxes(6)]
    candidates = torch.stack([random_boxes(30), random_boxes(30)])
    found = matcher(truth_of(*truth), candidates)
    for image in range(2):
        assert found[image].tolist() == match_slowly(truth[image], candidates[image], matcher)


def test_thresholds_include_the_foreground_and_exclude_the_background():
    candidates = on_a_line((0, 6.9), (0, 7), (0, 3), (0, 2.9))
    matched = Matcher(0.7, 0.3)(truth_of(on_a_line((0, 10))), candidates)
    assert matched.tolist() == [[IGNORE, 0, IGNORE, BACKGROUND]]


def test_keep_best_keeps_ties_and_gives_each_its_own_best():
    truth, candidates = on_a_line((0, 10), (8, 14)), on_a_line((0, 2), (8, 10), (10, 14))
    # candidates 0 and 1 are the best of ground truth 0, but 1 overlaps ground truth 1 more
    matched = Matcher(0.7, 0.3, allow_low_quality_matches=True)(truth_of(truth), candidates)
    assert matched.tolist() == [[0, 1, 1]]


@pytest.mark.parametrize("allow_low_quality_matches", [False, True])
@pytest.mark.parametrize("limits", [(0.7, 0.3), (0.0, 0.0)])
def test_no_ground_truth_makes_all_background(allow_low_quality_matches, limits):
    matcher = Matcher(*limits, allow_low_quality_matches)
    for truth in (truth_of(random_boxes(0)), GroundTruth(torch.zeros(1, 2, 4), torch.zeros(1, 2))):
        assert matcher(truth, random_boxes(3)).tolist() == [[BACKGROUND] * 3]


def test_no_candidates():
    matched = Matcher(0.7, 0.3, allow_low_quality_matches=True)(truth_of(random_boxes(2)), random_boxes(0))
    assert matched.shape == (1, 0)
    assert matched.dtype == torch.int64


def test_padding_changes_nothing():
    matcher, boxes, candidates = Matcher(0.5, 0.3, True), random_boxes(3), random_boxes(20)
    padded = truth_of(boxes, random_boxes(9))
    # what a padded box holds is never read
    padded.boxes[0, 3:] = candidates[:6]
    alone = matcher(truth_of(boxes), candidates)
    assert torch.equal(matcher(padded, candidates)[:1], alone)


def test_candidates_that_are_not_valid_are_ignored():
    matcher, truth, candidates = Matcher(0.5, 0.3), truth_of(random_boxes(3)), random_boxes(20)
    valid = torch.rand(1, 20) < 0.5
    every, some = matcher(truth, candidates), matcher(truth, candidates, valid)
    assert torch.equal(some[valid], every[valid])
    assert (some[~valid] == IGNORE).all()
    assert (every[~valid] != IGNORE).any()
