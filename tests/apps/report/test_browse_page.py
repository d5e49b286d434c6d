"""Anchor assignment: equal to the assignment in a training step."""

import pytest
import torch
from torch import Tensor

from detlite.apps.report.browse_page import match_anchors
from detlite.modeling import build_model
from detlite.modeling.rpn.rpn import RPN
from detlite.structures import boxes as box_ops


def batch():
    images = [
        torch.zeros(3, 90, 130, dtype=torch.uint8),
        torch.zeros(3, 128, 100, dtype=torch.uint8),
    ]
    boxes = [[[10.0, 10, 42, 42], [60, 5, 76, 21], [1, 1, 4, 4]], [[0, 0, 100, 128]]]
    targets = [
        {"boxes": torch.tensor(own), "labels": torch.ones(len(own), dtype=torch.int64)}
        for own in boxes
    ]
    return images, targets


def test_assignment_of_a_training_step(tiny_config, monkeypatch):
    """The assignment equals that in `RPN.losses` before sampling."""
    model = build_model(tiny_config("MODEL.MASK_ON", False, "MODEL.RPN.STRADDLE_THRESH", 0))
    images, targets = batch()
    drawn: list[Tensor] = []

    def losses(self, predictions, images, truth):
        matched = self.matcher(truth, torch.cat(predictions.anchors))
        seen = box_ops.inside(
            torch.cat(predictions.anchors), images.sizes, self.straddle, self.convention
        )
        drawn.append(torch.where(seen, matched, -2))
        return original(self, predictions, images, truth)

    original = RPN.losses
    monkeypatch.setattr(RPN, "losses", losses)
    model.train()(images, targets)
    matches = match_anchors(model, images, targets)
    assert (matches.matched == drawn[0]).all()
    assert len(matches.anchors) == matches.matched.shape[1] == len(matches.levels)


def test_counts_and_overlaps(tiny_config):
    model = build_model(tiny_config("MODEL.MASK_ON", False))
    images, targets = batch()
    matches = match_anchors(model, images, targets)
    assert matches.strides == [4, 8, 16, 32, 64]
    assert matches.foreground == 0.7
    for image, target in enumerate(targets):
        counts = matches.counts(image)
        for n, box in enumerate(target["boxes"]):
            own = matches.matched[image] == n
            for level in range(5):
                assert counts[n, level] == (own & (matches.levels == level)).sum()
            overlap = box_ops.iou(box[None], matches.anchors).max()
            assert matches.overlaps[image, n] == pytest.approx(overlap.item())
    assert matches.counts(0).sum() == (matches.matched[0] >= 0).sum()
    assert (matches.overlaps[1, 1:] == 0).all()  # padding


def test_object_without_anchors(tiny_config):
    """Of two overlapping objects, the one with the higher IoU has the anchors."""
    model = build_model(tiny_config("MODEL.MASK_ON", False))
    image = torch.zeros(3, 64, 64, dtype=torch.uint8)
    target = {
        "boxes": torch.tensor([[16.0, 16, 48, 48], [30, 30, 33, 33]]),
        "labels": torch.tensor([1, 1]),
    }
    matches = match_anchors(model, [image], [target])
    own = box_ops.iou(target["boxes"], matches.anchors)
    best = own[1] == own[1].max()
    lost = bool((own[0][best] > own[1][best]).all())
    assert (matches.counts(0)[1].sum() == 0) == lost
    assert matches.counts(0)[0].sum() > 0


@pytest.mark.parametrize("kind", ["RetinaNet", "ProposalNetwork", "C4"])
def test_other_models(tiny_config, kind):
    options = {
        "RetinaNet": ("MODEL.META_ARCHITECTURE", "RetinaNet", "MODEL.BACKBONE.CONV_BODY",
                      "R-18-FPN-RETINANET", "MODEL.RETINANET.NUM_CLASSES", 4),
        "ProposalNetwork": ("MODEL.META_ARCHITECTURE", "ProposalNetwork"),
        "C4": (),
    }[kind]  # fmt: skip
    model = build_model(tiny_config("MODEL.MASK_ON", False, *options, c4=kind == "C4"))
    matches = match_anchors(model, *batch())
    assert len(matches.strides) == (1 if kind == "C4" else 5)
    assert (matches.matched >= 0).any()


def test_model_with_precomputed_proposals(tiny_config):
    model = build_model(tiny_config("MODEL.MASK_ON", False, "MODEL.LOAD_PROPOSALS", True))
    assert match_anchors(model, *batch()) is None
