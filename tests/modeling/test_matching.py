from __future__ import annotations

import pytest
import torch

from detlite.modeling.matching import BACKGROUND, IGNORE, match, sample


def match_slowly(iou: list[list[float]], foreground: float, background: float, keep_best: bool):
    result = []
    for candidate in range(len(iou[0])):
        column = [row[candidate] for row in iou]
        best = max(column)
        truth = column.index(best)
        if best >= foreground:
            result.append(truth)
        else:
            result.append(BACKGROUND if best < background else IGNORE)
        if keep_best and any(row[candidate] == max(row) > 0 for row in iou):
            result[-1] = truth
    return result


@pytest.mark.parametrize("keep_best", [False, True])
@pytest.mark.parametrize("limits", [(0.7, 0.3), (0.5, 0.5), (0.95, 0.1)])
def test_match_candidate_by_candidate(keep_best, limits):
    iou = torch.rand(5, 40)
    iou[2] *= 0.2  # a ground truth that only `keep_best` serves
    iou[4] = 0
    assert match(iou, *limits, keep_best).tolist() == match_slowly(iou.tolist(), *limits, keep_best)


def test_thresholds_include_the_foreground_and_exclude_the_background():
    iou = torch.tensor([[0.69, 0.7, 0.3, 0.29]])
    assert match(iou, 0.7, 0.3).tolist() == [IGNORE, 0, IGNORE, BACKGROUND]


def test_keep_best_keeps_ties_and_gives_each_its_own_best():
    iou = torch.tensor([[0.2, 0.2, 0.1], [0.0, 0.25, 0.6]])
    # candidate 1 is the best of ground truth 0, but overlaps ground truth 1 more
    assert match(iou, 0.7, 0.3, keep_best=True).tolist() == [0, 1, 1]


@pytest.mark.parametrize("keep_best", [False, True])
def test_no_ground_truth_makes_all_background(keep_best):
    assert match(torch.zeros(0, 3), 0.7, 0.3, keep_best).tolist() == [BACKGROUND] * 3


@pytest.mark.parametrize("keep_best", [False, True])
def test_no_candidates(keep_best):
    assert match(torch.zeros(2, 0), 0.7, 0.3, keep_best).tolist() == []
    assert match(torch.zeros(0, 0), 0.7, 0.3, keep_best).dtype == torch.int64


def candidates(positive: int, negative: int, ignored: int) -> torch.Tensor:
    parts = [
        torch.arange(positive),
        torch.full((negative,), BACKGROUND),
        torch.full((ignored,), IGNORE),
    ]
    matched = torch.cat(parts)
    return matched[torch.randperm(len(matched))]


@pytest.mark.parametrize(
    ("available", "wanted"),
    [
        ((50, 50), (8, 24)),
        ((3, 50), (3, 29)),
        ((50, 5), (8, 5)),
        ((0, 50), (0, 32)),
        ((0, 0), (0, 0)),
    ],
)
def test_sample_counts(available, wanted):
    matched = candidates(*available, ignored=10)
    positive, negative = sample(matched, 32, 0.25)
    assert (len(positive), len(negative)) == wanted
    assert (matched[positive] >= 0).all()
    assert (matched[negative] == BACKGROUND).all()
    assert len({*positive.tolist(), *negative.tolist()}) == sum(wanted)


def test_sample_is_random_and_follows_the_seed():
    matched = candidates(100, 100, 0)
    first = sample(matched, 20, 0.5)[0]
    assert not torch.equal(first, sample(matched, 20, 0.5)[0])
    drawn = []
    for _ in range(2):
        torch.manual_seed(3)
        drawn.append(sample(matched, 20, 0.5)[0])
    assert torch.equal(*drawn)
