"""Anchor assignment: equal to the assignment in a training step."""

import pytest
import torch
from torch import Tensor

from detlite.apps.report.browse_page import match_anchors
from detlite.modeling import build_model
from detlite.modeling.rpn.rpn import RPN
from detlite.structures import boxes as box_ops


def batch():
    images = [torch.zeros(3, *size, dtype=torch.uint8) for size in ((90, 130), (128, 100))]
    boxes = [[[10.0, 10, 42, 42], [60, 5, 76, 21], [1, 1, 4, 4]], [[0, 0, 100, 128]]]
    labels = [torch.ones(len(own), dtype=torch.int64) for own in boxes]
    return images, [
        {"boxes": torch.tensor(own), "labels": ones}
        for own, ones in zip(boxes, labels, strict=True)
    ]


def test_assignment_of_a_training_step(tiny_config, monkeypatch):
    """The assignment equals that in `RPN.losses` before sampling."""
    model = build_model(tiny_config("MODEL.MASK_ON", False, "MODEL.RPN.STRADDLE_THRESH", 0))
    original, drawn = RPN.losses, list[Tensor]()

    def losses(self, predictions, images, truth):
        anchors = torch.cat(predictions.anchors)
        seen = box_ops.inside(anchors, images.sizes, self.straddle, self.convention)
        drawn.append(torch.where(seen, self.matcher(truth, anchors), -2))
        return original(self, predictions, images, truth)

    monkeypatch.setattr(RPN, "losses", losses)
    images, targets = batch()
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


@pytest.mark.parametrize(
    ("options", "levels"),
    [
        (("MODEL.META_ARCHITECTURE", "RetinaNet", "MODEL.BACKBONE.CONV_BODY", "R-18-FPN-RETINANET",
          "MODEL.RETINANET.NUM_CLASSES", 4), 5),
        (("MODEL.META_ARCHITECTURE", "ProposalNetwork"), 5),
        ((), 1),  # C4
        (("MODEL.LOAD_PROPOSALS", True), None),
    ],
)  # fmt: skip
def test_other_models(tiny_config, options, levels):
    model = build_model(tiny_config("MODEL.MASK_ON", False, *options, c4=levels == 1))
    matches = match_anchors(model, *batch())
    assert (matches and len(matches.strides)) == levels
    assert matches is None or (matches.matched >= 0).any()
