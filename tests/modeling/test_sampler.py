"""What is drawn for training: how many of which, at random, and padded."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from detlite.modeling.sampler import (
    BACKGROUND,
    IGNORE,
    Matcher,
    ProposalSampler,
    Sampler,
    build_proposal_sampler,
    label_samples,
)
from detlite.structures import boxes as box_ops
from detlite.structures.instances import GroundTruth, Proposals
from detlite.structures.padding import fixed_shapes, varying_shapes


def matched_as(positive: int, negative: int, ignored: int) -> Tensor:
    parts = [
        torch.arange(positive),
        torch.full((negative,), BACKGROUND),
        torch.full((ignored,), IGNORE),
    ]
    matched = torch.cat(parts)
    return matched[torch.randperm(len(matched))]


COUNTS = [((50, 50), (8, 24)), ((3, 97), (3, 29)), ((95, 5), (8, 5)), ((0, 100), (0, 32)),
          ((0, 0), (0, 0))]  # fmt: skip


def test_counts():
    matched = torch.stack([matched_as(p, n, 110 - p - n) for (p, n), _ in COUNTS])
    index, valid = Sampler(32, 0.25).draw(matched)
    assert index.shape == valid.shape == (5, 8 + 32)
    for image, (_, (positive, negative)) in enumerate(COUNTS):
        first, rest = index[image, :8][valid[image, :8]], index[image, 8:][valid[image, 8:]]
        assert (len(first), len(rest)) == (positive, negative)
        assert (matched[image, first] >= 0).all()
        assert (matched[image, rest] == BACKGROUND).all()
        assert len({*first.tolist(), *rest.tolist()}) == positive + negative


@pytest.mark.parametrize("candidates", [0, 1, 5])
def test_fewer_candidates_than_are_wanted(candidates):
    index, valid = Sampler(32, 0.25).draw(torch.zeros(2, candidates, dtype=torch.int64))
    assert index.shape == (2, 2 * candidates)
    assert valid.sum(dim=1).tolist() == [candidates] * 2
    index, valid = Sampler(32, 0.25).draw(torch.full((2, candidates), BACKGROUND))
    assert valid.sum(dim=1).tolist() == [candidates] * 2


def test_most_positive_is_a_whole_number():
    assert [Sampler(n, 0.25).max_positives for n in (512, 7, 3)] == [128, 1, 0]
    _, valid = Sampler(3, 0.25).draw(matched_as(9, 1, 0)[None])
    assert valid.sum() == 1


def test_drawing_is_random_and_follows_the_seed():
    matched = matched_as(100, 100, 0)[None]
    sampler = Sampler(20, 0.5)
    first = sampler.draw(matched)[0]
    assert not torch.equal(first, sampler.draw(matched)[0])
    drawn = []
    for _ in range(2):
        torch.manual_seed(3)
        drawn.append(sampler.draw(matched)[0])
    assert torch.equal(*drawn)


def test_every_candidate_is_drawn_equally_often():
    index, valid = Sampler(4, 0.5).draw(matched_as(10, 10, 10).repeat(4000, 1))
    counts = index[valid].bincount(minlength=30)
    assert counts[counts > 0].tolist() == pytest.approx([800] * 20, rel=0.15)


def test_images_are_drawn_apart():
    index, _ = Sampler(20, 0.5).draw(matched_as(100, 100, 0).repeat(2, 1))
    assert not torch.equal(index[0], index[1])


# ---- samples of proposals


def random_boxes(count: int) -> Tensor:
    corner = torch.rand(count, 2) * 60
    return torch.cat([corner, corner + 8 + torch.rand(count, 2) * 20], dim=1)


def scene(*counts: int, proposals: tuple[int, ...] | None = None) -> tuple[Proposals, GroundTruth]:
    """Images with so many objects, each with proposals around them and elsewhere."""
    proposals = proposals or (40,) * len(counts)
    objects = [random_boxes(count) for count in counts]
    most, max_proposals = max(1, *counts), max(1, *proposals)
    truth = GroundTruth(
        torch.zeros(len(counts), most, 4), torch.zeros(len(counts), most, dtype=torch.int64)
    )
    given = torch.zeros(len(counts), max_proposals, 4)
    valid = torch.zeros(len(counts), max_proposals, dtype=torch.bool)
    for image, (own, count) in enumerate(zip(objects, proposals, strict=True)):
        truth.boxes[image, : len(own)] = own
        truth.labels[image, : len(own)] = torch.randint(1, 5, (len(own),))
        around = own.repeat(count, 1)[: count // 2]
        around = around + torch.randn_like(around)
        given[image, :count] = torch.cat([around, random_boxes(count - len(around))])
        valid[image, :count] = True
    return Proposals(given, torch.zeros(valid.shape), valid), truth


EVERYTHING = ProposalSampler(1000, 1.0, Matcher(0.5, 0.5))


def rows_of(samples) -> list[list[float]]:
    """Sorted rows of one image's samples, without padding."""
    own = samples[samples.labels >= 0]
    columns = torch.cat([own.boxes, own.labels[:, None], own.gt_index[:, None]], dim=1)
    return sorted(columns.tolist())


def test_samples_are_labelled_one_by_one():
    proposals, truth = scene(4, 2)
    samples = EVERYTHING(proposals, truth)
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
        # ground truth is there itself
        assert all((own.boxes == box).all(dim=1).any() for box in truth.boxes[image, :count])


def test_foreground_is_first_and_padding_last():
    proposals, truth = scene(4, 0, 1)
    sampler = ProposalSampler(24, 0.25, Matcher(0.5, 0.5))
    assert sampler.max_positives == 6
    samples = sampler(proposals, truth)
    assert samples.labels.shape == (3, 24)
    foreground = samples.labels > 0
    assert foreground.sum(dim=1).tolist() == [6, 0, 6]
    assert not foreground[:, 6:].any()
    kind = samples.labels.clamp(-1, 1)
    assert (kind.diff(dim=1) <= 0).all()


def test_the_rest_is_padding():
    proposals, truth = scene(1, 1, proposals=(30, 4))
    samples = ProposalSampler(16, 0.25, Matcher(0.5, 0.5))(proposals, truth)
    assert (samples.labels[0] >= 0).all()
    assert (samples.labels[1] >= 0).sum() < 6
    assert (samples.gt_index[samples.labels <= 0] == 0).all()


def test_shapes_vary_only_where_they_may():
    proposals, truth = scene(3, 1, proposals=(30, 12))
    sampler = ProposalSampler(60, 0.5, Matcher(0.5, 0.5))

    def sample():
        torch.manual_seed(5)
        return sampler(proposals, truth)

    with fixed_shapes():
        fixed = sample()
    with varying_shapes():
        varying = sample()
    assert fixed.labels.shape == (2, 60)
    fullest = int((varying.labels >= 0).sum(dim=1).max())
    assert varying.labels.shape[1] == fullest < 60
    assert (fixed.labels[:, fullest:] == -1).all()
    for name in ("boxes", "labels", "gt_index"):
        assert torch.equal(getattr(fixed, name)[:, :fullest], getattr(varying, name))


def test_a_bigger_image_beside_it_changes_nothing():
    proposals, truth = scene(2, 7, proposals=(20, 50))
    samples = EVERYTHING(proposals, truth)
    alone = EVERYTHING(proposals[:1, :20], truth[:1, :2])
    assert rows_of(samples[0]) == rows_of(alone[0])


@pytest.mark.parametrize("objects", [0, 3])
def test_without_proposals_the_ground_truth_remains(objects):
    proposals, truth = scene(objects, proposals=(0,))
    samples = EVERYTHING(proposals, truth)
    assert rows_of(samples[0]) == rows_of(
        label_samples(
            truth.boxes,
            torch.arange(objects).expand(1, -1) if objects else torch.tensor([[BACKGROUND]]),
            truth.valid,
            truth,
        )[0]
    )
    assert (samples.labels >= 0).sum() == objects


def test_without_any_ground_truth_all_is_background():
    proposals, truth = scene(0, 0)
    samples = EVERYTHING(proposals, truth)
    assert (samples.labels == 0).sum(dim=1).tolist() == [40, 40]
    assert (samples.gt_index == 0).all()


def test_samples_carry_no_gradient():
    proposals, truth = scene(2)
    samples = EVERYTHING(replace(proposals, boxes=proposals.boxes.requires_grad_()), truth)
    assert not samples.boxes.requires_grad


def test_labels_of_matched_boxes():
    truth = GroundTruth(torch.zeros(1, 3, 4), torch.tensor([[4, 7, 0]]))
    matched = torch.tensor([[1, 0, BACKGROUND, IGNORE, 1]])
    valid = torch.tensor([[True, True, True, False, False]])
    samples = label_samples(torch.zeros(1, 5, 4), matched, valid, truth)
    assert samples.labels.tolist() == [[7, 4, 0, -1, -1]]
    assert samples.gt_index.tolist() == [[1, 0, 0, 0, 0]]


def test_by_config(tiny_config):
    prefix = "MODEL.ROI_HEADS."
    sampler = build_proposal_sampler(
        tiny_config(prefix + "FG_IOU_THRESHOLD", 0.6, prefix + "BG_IOU_THRESHOLD", 0.4,
                    prefix + "BATCH_SIZE_PER_IMAGE", 40, prefix + "POSITIVE_FRACTION", 0.1)
    )  # fmt: skip
    assert sampler == ProposalSampler(40, 0.1, Matcher(0.6, 0.4, allow_low_quality_matches=False))
    assert sampler.max_positives == 4
