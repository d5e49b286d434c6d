import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.models.detection._utils import BoxCoder as TorchvisionCoder
from torchvision.ops import generalized_box_iou_loss

from detlite.modeling.boxes.box_coder import MAX_LOG_SCALE, BoxCoder
from detlite.modeling.boxes.losses import BoxLoss, build_box_loss, generalized_iou
from tests.builders import random_boxes

CODER = BoxCoder((10.0, 10.0, 5.0, 5.0))
ALL = torch.ones(20, dtype=torch.bool)
each_kind = pytest.mark.parametrize("kind", ["smooth_l1", "l1", "giou"])


def expected_losses(loss: BoxLoss, deltas: Tensor, boxes: Tensor, references: Tensor) -> Tensor:
    if loss.kind == "giou":
        losses = generalized_box_iou_loss(CODER.decode(deltas, references), boxes)
    else:
        beta = loss.beta if loss.kind == "smooth_l1" else 0.0
        target = CODER.encode(boxes, references)
        losses = F.smooth_l1_loss(deltas, target, reduction="none", beta=beta).sum(dim=1)
    return loss.weight * losses


@pytest.mark.parametrize(
    "loss",
    [
        BoxLoss("smooth_l1", 1.0),
        BoxLoss("smooth_l1", 0.0),
        BoxLoss("l1", 1.0),
        BoxLoss("giou"),
        BoxLoss("giou", weight=10.0),
    ],
)
def test_losses_match_torch(loss):
    deltas, boxes, references = torch.randn(20, 4), random_boxes(20), random_boxes(20)
    losses = loss(CODER, deltas, boxes, references, ALL)
    torch.testing.assert_close(losses, expected_losses(loss, deltas, boxes, references))
    batch = (x.view(4, 5, 4) for x in (deltas, boxes, references))
    torch.testing.assert_close(loss(CODER, *batch, ALL.view(4, 5)), losses.view(4, 5))


@pytest.mark.parametrize("padding", [0.0, float("nan"), float("inf"), -1e30])
@each_kind
def test_boxes_that_are_not_counted_have_no_effect(kind, padding):
    counted = torch.tensor([True, False, True, False])
    inputs = [torch.randn(4, 4), random_boxes(4), random_boxes(4)]
    for values in inputs:
        values[~counted] = padding
    deltas = inputs[0].requires_grad_()
    loss = BoxLoss(kind)(CODER, *inputs, counted)
    loss.sum().backward()
    some = [values.detach()[counted] for values in inputs]
    alone = BoxLoss(kind)(CODER, some[0].requires_grad_(), *some[1:], ALL[:2])
    alone.sum().backward()
    torch.testing.assert_close(loss[counted], alone)
    torch.testing.assert_close(deltas.grad[counted], some[0].grad)
    assert not loss[~counted].any()
    assert not deltas.grad[~counted].any()
    none = BoxLoss(kind)(CODER, *inputs, torch.zeros(4, dtype=torch.bool))
    assert none.tolist() == [0] * 4


@pytest.mark.parametrize("section", ["RPN", "ROI_BOX_HEAD", "RETINANET"])
def test_config_keys_of_each_section(tiny_config, section):
    keys = [f"MODEL.{section}.BOX_LOSS", "l1"]
    weight = ["BBOX_REG_WEIGHT", 0.5] if section == "RETINANET" else ["BOX_LOSS_WEIGHT", 2.0]
    beta = "BBOX_REG_BETA" if section == "RETINANET" else "SMOOTH_L1_BETA"
    cfg = tiny_config(
        *keys, f"MODEL.{section}.{weight[0]}", weight[1], f"MODEL.{section}.{beta}", 0.3
    )
    assert build_box_loss(cfg, section) == BoxLoss("l1", 0.3, 2.0)


BOX = [10.0, 10, 30, 20]


@pytest.mark.parametrize(
    "other",
    [
        BOX,
        [12.0, 5, 50, 18],  # overlaps
        [40.0, 40, 60, 50],  # apart along both axes
        [40.0, 12, 60, 18],  # apart along x
        [30.0, 10, 50, 20],  # touches
        [10.0, 10, 10, 20],  # empty
        [15.0, 12, 20, 18],  # inside
    ],
)
def test_giou_and_its_gradient_match_torchvision(other):
    boxes, copies = (torch.tensor([BOX, BOX], requires_grad=True) for _ in range(2))
    others = torch.tensor([other, other])
    loss = 1 - generalized_iou(boxes, others)
    expected = generalized_box_iou_loss(copies, others)
    torch.testing.assert_close(loss, expected)
    loss.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(boxes.grad, copies.grad)


WEIGHTS = (10.0, 10.0, 5.0, 5.0)


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


def test_shrinking_is_limited_on_request():
    deltas, reference = torch.tensor([[0.0, 0, -100, 0]]), torch.tensor([[0.0, 0, 1000, 2]])
    limited = BoxCoder((1, 1, 1, 1), limit_shrinking=True).decode(deltas, reference)
    torch.testing.assert_close(limited, torch.tensor([[492.0, 0, 508, 2]]))
    assert BoxCoder((1, 1, 1, 1)).decode(deltas, reference)[0, 0] == 500
