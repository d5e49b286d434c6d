import pytest
import torch

from detlite.modeling.build import build_model

NETWORK = ["MODEL.META_ARCHITECTURE", "ProposalNetwork", "MODEL.MASK_ON", False]


@pytest.fixture
def network(tiny_config):
    return build_model(tiny_config(*NETWORK))


def test_losses_of_the_rpn_decrease(network, make_batch):
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
    result = network(images)
    batch = network.normalizer(images)
    with torch.no_grad():
        proposals = network.rpn.propose(network.rpn(network.backbone(batch.pixels)), batch, False)
    for index, detection in enumerate(result):
        assert set(detection) == {"boxes", "scores", "labels"}
        own = proposals[index][proposals.valid[index]]
        torch.testing.assert_close(detection["boxes"], own.boxes)
        torch.testing.assert_close(detection["scores"], own.scores.sigmoid())
        assert len(own.boxes) == 50  # FPN_POST_NMS_TOP_N_TEST
        assert (detection["labels"] == 1).all()
        assert (detection["scores"].diff() <= 0).all()
        assert ((detection["scores"] > 0) & (detection["scores"] < 1)).all()
