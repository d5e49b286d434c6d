import dataclasses

import pytest
import torch
from torch import Tensor
from torchvision.models.detection._utils import Matcher as TorchvisionMatcher
from torchvision.ops import box_iou

from detlite.modeling.boxes.matcher import BACKGROUND, IGNORE, Matcher
from detlite.modeling.boxes.sampler import (
    ProposalSampler,
    Sampler,
    build_proposal_sampler,
    label_samples,
)
from detlite.structures import boxes as box_ops
from detlite.structures.instances import GroundTruth, Proposals
from tests.builders import padded_gt, random_boxes


def shuffled_matches(positive: int, negative: int, ignored: int) -> Tensor:
    kinds = [*range(positive), *[BACKGROUND] * negative, *[IGNORE] * ignored]
    return torch.tensor(kinds)[torch.randperm(len(kinds))]


# Positive and negative candidates, and how many of each are drawn.
COUNTS = [((50, 50), (8, 24)), ((3, 97), (3, 29)), ((95, 5), (8, 5)), ((0, 100), (0, 32)),
          ((0, 0), (0, 0))]  # fmt: skip


def test_numbers_of_drawn_candidates():
    matched = torch.stack([shuffled_matches(p, n, 110 - p - n) for (p, n), _ in COUNTS])
    index, valid = Sampler(32, 0.25).draw(matched)
    assert index.shape == valid.shape == (5, 8 + 32)
    for image, (_, (positive, negative)) in enumerate(COUNTS):
        first, rest = index[image, :8][valid[image, :8]], index[image, 8:][valid[image, 8:]]
        assert (len(first), len(rest)) == (positive, negative)
        assert (matched[image, first] >= 0).all()
        assert (matched[image, rest] == BACKGROUND).all()
        assert len({*first.tolist(), *rest.tolist()}) == positive + negative


def test_every_candidate_is_drawn_equally_often():
    index, valid = Sampler(4, 0.5).draw(shuffled_matches(10, 10, 10).repeat(4000, 1))
    counts = index[valid].bincount(minlength=30)
    assert counts[counts > 0].tolist() == pytest.approx([800] * 20, rel=0.15)


ALL = ProposalSampler(1000, 1.0, Matcher(0.5, 0.5))


def scene(*counts: int, proposals: tuple[int, ...] | None = None) -> tuple[Proposals, GroundTruth]:
    """Return the ground truth of images with these numbers of objects, and proposals.

    Half of the proposals are near objects.
    """
    proposals = proposals or (40,) * len(counts)
    objects = [random_boxes(count, extent=60, sides=(8, 68)) for count in counts]
    truth = padded_gt(*objects)
    truth.labels[truth.valid] = torch.randint(1, 5, (int(truth.valid.sum()),))
    boxes = torch.zeros(len(counts), max(1, *proposals), 4)
    valid = torch.zeros(boxes.shape[:2], dtype=torch.bool)
    for image, (own, count) in enumerate(zip(objects, proposals, strict=True)):
        near = own.repeat(count, 1)[: count // 2]
        near = near + torch.randn_like(near)
        boxes[image, :count] = torch.cat(
            [near, random_boxes(count - len(near), extent=60, sides=(8, 68))]
        )
        valid[image, :count] = True
    return Proposals(boxes, torch.zeros(valid.shape), valid), truth


def test_samples_are_labelled_by_iou():
    proposals, truth = scene(4, 2)
    samples = ALL(proposals, truth, False)
    for image, count in enumerate((4, 2)):
        own = samples[image][samples.labels[image] >= 0]
        assert len(own.boxes) == 40 + count
        for box, label, index in zip(own.boxes, own.labels, own.gt_index, strict=True):
            overlap = box_ops.iou(box[None], truth.boxes[image, :count])[0]
            if overlap.max() >= 0.5:
                assert index == overlap.argmax()
                assert label == truth.labels[image, index]
            else:
                assert (label, index) == (0, 0)
        assert (own.labels > 0).sum() > count
        # The ground truth itself is among the samples.
        assert all((own.boxes == box).all(dim=1).any() for box in truth.boxes[image, :count])


def test_foreground_is_first_and_padding_last():
    proposals, truth = scene(4, 0, 1)
    sampler = ProposalSampler(24, 0.25, Matcher(0.5, 0.5))
    assert sampler.max_positives == 6
    samples = sampler(proposals, truth, False)
    assert samples.labels.shape == (3, 24)
    foreground = samples.labels > 0
    assert foreground.sum(dim=1).tolist() == [6, 0, 6]
    assert not foreground[:, 6:].any()
    assert (samples.labels.clamp(-1, 1).diff(dim=1) <= 0).all()
    few = ProposalSampler(500, 0.25, Matcher(0.5, 0.5))  # more than there are candidates
    drawn = (few(proposals, truth, True).labels >= 0).sum(dim=1)
    assert few(proposals, truth, False).labels.shape[1] == drawn.max() < 125


def test_label_samples():
    truth = GroundTruth(torch.zeros(1, 3, 4), torch.tensor([[4, 7, 0]]))
    matched = torch.tensor([[1, 0, BACKGROUND, IGNORE, 1]])
    valid = torch.tensor([[True, True, True, False, False]])
    samples = label_samples(torch.zeros(1, 5, 4), matched, valid, truth)
    assert samples.labels.tolist() == [[7, 4, 0, -1, -1]]
    assert samples.gt_index.tolist() == [[1, 0, 0, 0, 0]]


def test_build_proposal_sampler(tiny_config):
    prefix = "MODEL.ROI_HEADS."
    sampler = build_proposal_sampler(
        tiny_config(prefix + "FG_IOU_THRESHOLD", 0.6, prefix + "BG_IOU_THRESHOLD", 0.4,
                    prefix + "BATCH_SIZE_PER_IMAGE", 40, prefix + "POSITIVE_FRACTION", 0.1)
    )  # fmt: skip
    assert sampler == ProposalSampler(40, 0.1, Matcher(0.6, 0.4, allow_low_quality_matches=False))
    assert sampler.max_positives == 4


each_mode = pytest.mark.parametrize("allow_low_quality", [False, True])


def intervals(*ends: tuple[float, float]) -> Tensor:
    """Return boxes of height 1, whose IoUs are those of intervals."""
    return torch.tensor([[start, 0.0, end, 1.0] for start, end in ends])


def reference_match(truth: Tensor, candidates: Tensor, matcher: Matcher) -> Tensor:
    """Match by torchvision, which also matches boxes that overlap nothing, here left out."""
    quality = box_iou(truth, candidates)
    places = quality.any(dim=1).nonzero()[:, 0]
    if not len(places):
        return torch.full((len(candidates),), BACKGROUND)
    settings = matcher.foreground, matcher.background, matcher.allow_low_quality_matches
    matched = TorchvisionMatcher(*settings)(quality[places])
    return torch.where(matched < 0, matched, places[matched])


@each_mode
@pytest.mark.parametrize("thresholds", [(0.7, 0.3), (0.5, 0.5), (0.95, 0.1)])
def test_matches_equal_torchvision(allow_low_quality, thresholds):
    matcher = Matcher(*thresholds, allow_low_quality)
    truth = [random_boxes(5), random_boxes(2), random_boxes(0)]
    candidates = random_boxes(40)
    candidates[7] = torch.tensor([80.0, 80, 120, 120])
    truth[0][2] = torch.tensor([110.0, 110, 130, 130])  # has only a low-quality match
    truth[0][4] = torch.tensor([200.0, 200, 210, 210])  # overlaps nothing
    matched = matcher(padded_gt(*truth), candidates)
    assert matched.dtype == torch.int64
    for boxes, own in zip(truth, matched, strict=True):
        assert torch.equal(own, reference_match(boxes, candidates, matcher))
    assert (matched[0] == 2).any() == allow_low_quality


@pytest.mark.parametrize(
    ("truth", "candidates", "low_quality", "expected"),
    [  # the thresholds include foreground and exclude background
        ([(0, 10)], [(0, 6.9), (0, 7), (0, 3), (0, 2.9)], False, [IGNORE, 0, IGNORE, BACKGROUND]),
        # Candidates 0 and 1 are the best of ground truth 0, but 1 overlaps ground truth 1 more.
        ([(0, 10), (8, 14)], [(0, 2), (8, 10), (10, 14)], True, [0, 1, 1]),
    ],
)
def test_match_of_intervals(truth, candidates, low_quality, expected):
    matcher = Matcher(0.7, 0.3, low_quality)
    assert matcher(padded_gt(intervals(*truth)), intervals(*candidates)).tolist() == [expected]


@each_mode
@pytest.mark.parametrize("thresholds", [(0.7, 0.3), (0.0, 0.0)])
def test_without_ground_truth_all_is_background(allow_low_quality, thresholds):
    matcher = Matcher(*thresholds, allow_low_quality)
    padding = GroundTruth(torch.zeros(1, 2, 4), torch.zeros(1, 2))
    for truth in (padded_gt(random_boxes(0)), padding):
        assert matcher(truth, random_boxes(3)).tolist() == [[BACKGROUND] * 3]


def test_invalid_candidates_are_ignored():
    matcher, truth, candidates = Matcher(0.5, 0.3), padded_gt(random_boxes(3)), random_boxes(20)
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
