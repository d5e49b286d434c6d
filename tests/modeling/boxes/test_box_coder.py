import torch
from torchvision.models.detection._utils import BoxCoder as TorchvisionCoder

from detlite.modeling.boxes.box_coder import MAX_LOG_SCALE, BoxCoder
from tests.builders import random_boxes

WEIGHTS = (10.0, 10.0, 5.0, 5.0)
CODER = BoxCoder(WEIGHTS)


def test_encode_matches_torchvision():
    boxes, references = random_boxes(20), random_boxes(20)
    (expected,) = TorchvisionCoder(WEIGHTS).encode([boxes], [references])
    torch.testing.assert_close(CODER.encode(boxes, references), expected)


def test_decode_matches_torchvision():
    references = random_boxes(20)
    deltas = torch.randn(20, 4) * torch.tensor([5.0, 5, 20, 20])
    assert (deltas[:, 2:] / 5 > MAX_LOG_SCALE).any()
    expected = TorchvisionCoder(WEIGHTS).decode(deltas, [references])[:, 0]
    torch.testing.assert_close(CODER.decode(deltas, references), expected)


def test_decode_inverts_encode_for_batches_too():
    boxes, references = random_boxes(12), random_boxes(12)
    deltas = CODER.encode(boxes, references)
    decoded = CODER.decode(deltas, references)
    torch.testing.assert_close(decoded, boxes, atol=1e-3, rtol=1e-5)
    batch = CODER.encode(boxes.view(3, 4, 4), references.view(3, 4, 4))
    assert torch.equal(batch, deltas.view(3, 4, 4))
    assert torch.equal(CODER.decode(batch, references.view(3, 4, 4)), decoded.view(3, 4, 4))


def test_shrinking_is_limited_on_request():
    deltas, reference = torch.tensor([[0.0, 0, -100, 0]]), torch.tensor([[0.0, 0, 1000, 2]])
    limited = BoxCoder((1, 1, 1, 1), limit_shrinking=True).decode(deltas, reference)
    torch.testing.assert_close(limited, torch.tensor([[492.0, 0, 508, 2]]))
    assert BoxCoder((1, 1, 1, 1)).decode(deltas, reference)[0, 0] == 500
