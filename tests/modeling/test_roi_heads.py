from __future__ import annotations

import pytest
import torch

from detlite.modeling.rcnn import build_model
from detlite.modeling.roi_heads import ProposalSampling, RoIHeads
from detlite.structures import boxes as box_ops

TRUTH = torch.tensor([[0.0, 0, 20, 20], [30, 30, 50, 60]])
LABELS = torch.tensor([3, 1])


def some_proposals(count: int = 60) -> torch.Tensor:
    """Half of them near a ground truth, half anywhere."""
    near = TRUTH.repeat(count // 4, 1) + torch.randn(2 * (count // 4), 4) * 4
    corner = torch.rand(count // 2, 2) * 60
    far = torch.cat([corner, corner + 5 + torch.rand(count // 2, 2) * 20], dim=1)
    proposals = torch.cat([near, far])
    return proposals[box_ops.at_least(proposals, 1)]


def sample(proposals, truth=TRUTH, labels=LABELS, **changes):
    settings = {"foreground": 0.5, "background": 0.5, "per_image": 16, "positive_fraction": 0.25}
    heads = RoIHeads(
        torch.nn.Identity(), None, None,
        sampling=ProposalSampling(**{**settings, **changes}),
    )  # fmt: skip
    return heads._sample(proposals, {"boxes": truth, "labels": labels})


def test_sample_has_the_asked_size_and_foreground_first():
    boxes, target = sample(some_proposals())
    assert len(boxes) == 16
    assert (target["labels"] > 0).tolist() == [True] * 4 + [False] * 12


@pytest.mark.parametrize("limits", [(0.5, 0.5), (0.7, 0.3)])
def test_each_sampled_proposal_has_its_own_ground_truth(limits):
    foreground, background = limits
    boxes, target = sample(
        some_proposals(), foreground=foreground, background=background, per_image=1000,
        positive_fraction=1.0,
    )  # fmt: skip
    best, index = box_ops.iou(TRUTH, boxes).max(dim=0)
    kept = best >= foreground
    assert kept.any()
    assert ((best >= foreground) | (best < background)).all()
    assert torch.equal(target["labels"], torch.where(kept, LABELS[index], 0))
    assert torch.equal(target["boxes"][kept], TRUTH[index[kept]])
    assert torch.equal(target["matched"][kept], index[kept])


def test_ground_truth_joins_the_proposals():
    boxes, target = sample(torch.zeros(0, 4), positive_fraction=1.0)
    order = target["matched"].argsort()
    assert torch.equal(boxes[order], TRUTH)
    assert torch.equal(target["labels"][order], LABELS)


def test_without_ground_truth_all_is_background():
    boxes, target = sample(some_proposals(), TRUTH[:0], LABELS[:0])
    assert len(boxes) == 16
    assert not target["labels"].any()


def test_without_anything_the_sample_is_empty():
    boxes, target = sample(torch.zeros(0, 4), TRUTH[:0], LABELS[:0])
    assert boxes.shape == target["boxes"].shape == (0, 4)
    assert target["labels"].shape == (0,)


@pytest.mark.parametrize("c4", [False, True], ids=["separate", "shared"])
def test_mask_head_gets_the_features_and_masks_of_the_foreground(
    tiny_config, make_batch, monkeypatch, c4
):
    model = build_model(tiny_config(c4=c4)).train()
    heads, given = model.roi_heads, {}

    def loss(x, boxes, targets):
        given.update(x=x, boxes=boxes, targets=targets)
        return {"loss_mask": x.sum()}

    monkeypatch.setattr(heads.mask, "loss", loss)
    images, truth = make_batch(3, 1)
    batch = model.normalizer(images)
    features = model.backbone(batch.tensor)
    heads.losses(features, [some_proposals(), some_proposals()], truth, batch.sizes)
    extractor = heads.mask.feature_extractor or heads.box.feature_extractor
    torch.testing.assert_close(given["x"], extractor(features, given["boxes"]))
    assert len(given["x"]) >= 4
    for boxes, target, own in zip(given["boxes"], given["targets"], truth, strict=True):
        overlap = box_ops.iou(own["boxes"], boxes)
        assert torch.equal(overlap.argmax(0), target["matched"])
        assert (overlap.max(0).values >= 0.5).all()
        assert torch.equal(target["labels"], own["labels"][target["matched"]])
        assert target["masks"] is own["masks"]
