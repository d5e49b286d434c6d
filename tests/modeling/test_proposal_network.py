"""Backbone and RPN alone as a detector."""

from __future__ import annotations

import pytest
import torch

from detlite.config import ConfigError
from detlite.modeling.build import build_model
from detlite.structures.padding import fixed_shapes

ALONE = ["MODEL.META_ARCHITECTURE", "ProposalNetwork", "MODEL.MASK_ON", False]


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
        proposals = network.rpn.propose(network.rpn(network.backbone(batch.pixels)), batch)
    for index, detection in enumerate(found):
        assert set(detection) == {"boxes", "scores", "labels"}
        own = proposals[index][proposals.valid[index]]
        torch.testing.assert_close(detection["boxes"], own.boxes)
        torch.testing.assert_close(detection["scores"], own.scores.sigmoid())
        assert len(own.boxes) == 50  # FPN_POST_NMS_TOP_N_TEST
        assert (detection["labels"] == 1).all()
        assert (detection["scores"].diff() <= 0).all()
        assert ((detection["scores"] > 0) & (detection["scores"] < 1)).all()


def test_one_map_keeps_its_own_number_of_proposals(tiny_config, make_batch):
    cfg = tiny_config(*ALONE, "MODEL.RPN.POST_NMS_TOP_N_TEST", 7, c4=True)
    [found] = build_model(cfg).eval()(make_batch(1)[0])
    assert len(found["boxes"]) == 7


def test_fixed_and_varying_shapes_agree(tiny_config, make_batch):
    # min_size leaves each image another number of proposals
    network = build_model(tiny_config(*ALONE, "MODEL.RPN.MIN_SIZE", 12)).eval()
    images, _ = make_batch(2, 1)
    batch, _ = network.prepare(images)
    varying = network.detect(images)
    with torch.no_grad(), fixed_shapes():
        fixed = network.predict(batch)
    assert fixed.valid.shape == (2, 50)
    for index, own in enumerate(varying):
        assert 0 < len(own.boxes) == fixed.valid[index].sum()
        alone = fixed[index][fixed.valid[index]]
        assert torch.equal(alone.boxes, own.boxes)
        assert torch.equal(alone.scores, own.scores)


def test_an_image_is_the_same_beside_another(network, make_batch):
    images, _ = make_batch(2, 0)
    both = [images[0], torch.rand_like(images[0], dtype=torch.float32)]  # padded alike
    network.eval()
    for alone, together in zip(network.detect(both[:1]), network.detect(both), strict=False):
        torch.testing.assert_close(alone.boxes, together.boxes, atol=1e-3, rtol=1e-4)
        torch.testing.assert_close(alone.scores, together.scores)


@pytest.mark.parametrize("key", ["MASK_ON", "KEYPOINT_ON", "LOAD_PROPOSALS"])
def test_it_has_no_heads(tiny_config, key):
    opts = [*ALONE, f"MODEL.{key}", True]
    with pytest.raises(ConfigError, match=f"has no heads: MODEL.{key} must be False"):
        build_model(tiny_config(*opts))
