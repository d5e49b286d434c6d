from __future__ import annotations

import math

import torch
from torchvision.models.detection._utils import BoxCoder as TorchvisionCoder

from detlite.modeling.box_coder import MAX_LOG_SCALE, BoxCoder

WEIGHTS = (10.0, 10.0, 5.0, 5.0)


def random_boxes(count: int) -> torch.Tensor:
    corner = torch.rand(count, 2) * 100
    return torch.cat([corner, corner + 1 + torch.rand(count, 2) * 60], dim=1)


def test_deltas_by_hand():
    reference = torch.tensor([[0.0, 0, 10, 20]])
    box = torch.tensor([[5.0, 0, 25, 20]])
    wanted = torch.tensor([[10 * 1.0, 0, 5 * math.log(2), 0]])
    torch.testing.assert_close(BoxCoder(WEIGHTS).encode(box, reference), wanted)


def test_encode_is_torchvisions():
    boxes, references = random_boxes(20), random_boxes(20)
    (wanted,) = TorchvisionCoder(WEIGHTS).encode([boxes], [references])
    torch.testing.assert_close(BoxCoder(WEIGHTS).encode(boxes, references), wanted)


def test_decode_is_torchvisions():
    references = random_boxes(20)
    deltas = torch.randn(20, 4) * torch.tensor([5.0, 5, 20, 20])  # some beyond the limit
    wanted = TorchvisionCoder(WEIGHTS).decode(deltas, [references])[:, 0]
    assert (deltas[:, 2:] / 5 > MAX_LOG_SCALE).any()
    torch.testing.assert_close(BoxCoder(WEIGHTS).decode(deltas, references), wanted)


def test_decode_undoes_encode():
    boxes, references = random_boxes(20), random_boxes(20)
    coder = BoxCoder(WEIGHTS)
    decoded = coder.decode(coder.encode(boxes, references), references)
    torch.testing.assert_close(decoded, boxes, atol=1e-3, rtol=1e-5)


def test_shrinking_is_limited_where_it_is_asked_for():
    deltas, reference = torch.tensor([[0.0, 0, -100, 0]]), torch.tensor([[0.0, 0, 1000, 2]])
    decoded = BoxCoder((1, 1, 1, 1), limit_shrinking=True).decode(deltas, reference)
    torch.testing.assert_close(decoded, torch.tensor([[492.0, 0, 508, 2]]))
    assert BoxCoder((1, 1, 1, 1)).decode(deltas, reference)[0, 0] == 500


def test_growth_is_limited():
    huge = torch.tensor([[0.0, 0, 100, 100]])
    decoded = BoxCoder((1, 1, 1, 1)).decode(huge, torch.tensor([[0.0, 0, 2, 2]]))
    torch.testing.assert_close(decoded, torch.tensor([[-61.5, -61.5, 63.5, 63.5]]))


def test_half_precision_deltas_decode_in_float32():
    decoded = BoxCoder(WEIGHTS).decode(torch.zeros(1, 4, dtype=torch.bfloat16), random_boxes(1))
    assert decoded.dtype == torch.float32


def test_no_boxes():
    coder, none = BoxCoder(WEIGHTS), torch.zeros(0, 4)
    assert coder.encode(none, none).shape == coder.decode(none, none).shape == (0, 4)


def test_boxes_of_a_batch():
    boxes, references = random_boxes(12), random_boxes(12)
    coder = BoxCoder(WEIGHTS)
    deltas = coder.encode(boxes, references)
    batched = coder.encode(boxes.view(3, 4, 4), references.view(3, 4, 4))
    assert torch.equal(batched, deltas.view(3, 4, 4))
    decoded = coder.decode(deltas, references)
    assert torch.equal(coder.decode(batched, references.view(3, 4, 4)), decoded.view(3, 4, 4))
