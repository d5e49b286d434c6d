import pytest
import torch

from detlite.modeling.build import build_model

NETWORK = ["MODEL.META_ARCHITECTURE", "ProposalNetwork", "MODEL.MASK_ON", False]


@pytest.fixture
def network(tiny_config):
    return build_model(tiny_config(*NETWORK))


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
