"""Backbone and RPN alone as a detector."""

from __future__ import annotations

import pytest
import torch

from detlite.config import ConfigError
from detlite.modeling.rcnn import build_model

ALONE = ["MODEL.RPN_ONLY", True, "MODEL.MASK_ON", False]


@pytest.fixture
def network(tiny_config):
    return build_model(tiny_config(*ALONE))


def test_it_has_the_losses_of_the_rpn_and_learns_from_them(network, make_batch):
    images, targets = make_batch(2, 0, 1)
    losses = network.train()(images, targets)
    assert list(losses) == ["loss_objectness", "loss_rpn_box"]
    sum(losses.values()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    for _ in range(15):
        optimizer.zero_grad()
        after = network(images, targets)
        sum(after.values()).backward()
        optimizer.step()
    assert sum(after.values()) < 0.7 * sum(losses.values())


def test_detections_are_the_proposals_of_the_rpn(network, make_batch):
    images, _ = make_batch(2, 1)
    network.eval()
    found = network(images)
    batch = network.normalizer(images)
    with torch.no_grad():
        proposals, _ = network.rpn(batch.sizes, network.backbone(batch.tensor))
    for detection, boxes in zip(found, proposals, strict=True):
        assert set(detection) == {"boxes", "scores", "labels"}
        torch.testing.assert_close(detection["boxes"], boxes)
        assert len(boxes) == 50  # FPN_POST_NMS_TOP_N_TEST
        assert (detection["labels"] == 1).all()
        assert (detection["scores"].diff() <= 0).all()
        assert ((detection["scores"] > 0) & (detection["scores"] < 1)).all()


def test_one_map_keeps_its_own_number_of_proposals(tiny_config, make_batch):
    cfg = tiny_config(*ALONE, "MODEL.RPN.POST_NMS_TOP_N_TEST", 7, c4=True)
    [found] = build_model(cfg).eval()(make_batch(1)[0])
    assert len(found["boxes"]) == 7


@pytest.mark.parametrize("key", ["MASK_ON", "KEYPOINT_ON"])
def test_it_has_no_heads(tiny_config, key):
    opts = ["MODEL.RPN_ONLY", True, "MODEL.MASK_ON", False, f"MODEL.{key}", True]
    with pytest.raises(ConfigError, match=f"leaves out all heads: MODEL.{key} must be False"):
        build_model(tiny_config(*opts))


def test_keys_of_the_missing_heads_are_free(tiny_config):
    cfg = tiny_config(*ALONE, "MODEL.ROI_BOX_HEAD.POOLER_SCALES", (0.0625,))
    assert not hasattr(build_model(cfg), "roi_heads")
