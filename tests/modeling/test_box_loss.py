from __future__ import annotations

import pytest
import torch

from detlite.modeling.box_coder import BoxCoder, BoxLoss
from detlite.modeling.build import build_model

CODER = BoxCoder((10.0, 10.0, 5.0, 5.0))
EVERY = torch.ones(20, dtype=torch.bool)
KINDS = ["smooth_l1", "l1", "giou"]


def random_boxes(count: int) -> torch.Tensor:
    corner = torch.rand(count, 2) * 40
    return torch.cat([corner, corner + 5 + torch.rand(count, 2) * 30], dim=1)


def giou(a: list[float], b: list[float]) -> float:
    """By the paper's algorithm 1."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    intersection = max(width, 0) * max(height, 0)
    union = sum((x[2] - x[0]) * (x[3] - x[1]) for x in (a, b)) - intersection
    hull = (max(a[2], b[2]) - min(a[0], b[0])) * (max(a[3], b[3]) - min(a[1], b[1]))
    return intersection / union - (hull - union) / hull


def one_by_one(loss: BoxLoss, deltas, boxes, references) -> list[float]:
    losses = []
    for delta, box, reference in zip(deltas, boxes, references, strict=True):
        if loss.kind == "giou":
            (decoded,) = CODER.decode(delta[None], reference[None]).tolist()
            losses.append(loss.weight * (1 - giou(decoded, box.tolist())))
            continue
        total = 0.0
        wanted = CODER.encode(box[None], reference[None])[0]
        for difference in (delta - wanted).abs().tolist():
            quadratic = loss.kind == "smooth_l1" and difference < loss.beta
            total += (
                difference**2 / (2 * loss.beta)
                if quadratic
                else difference - (loss.beta / 2 if loss.kind == "smooth_l1" else 0)
            )
        losses.append(loss.weight * total)
    return losses


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
def test_each_box_by_itself(loss):
    deltas = torch.randn(20, 4)
    boxes, references = random_boxes(20), random_boxes(20)
    found = loss(CODER, deltas, boxes, references, EVERY[:20])
    wanted = one_by_one(loss, deltas, boxes, references)
    assert found.tolist() == pytest.approx(wanted, rel=1e-4, abs=1e-6)
    shaped = (x.view(4, 5, 4) for x in (deltas, boxes, references))
    torch.testing.assert_close(loss(CODER, *shaped, EVERY[:20].view(4, 5)), found.view(4, 5))


@pytest.mark.parametrize("kind", KINDS)
def test_the_right_deltas_cost_nothing(kind):
    boxes, references = random_boxes(9), random_boxes(9)
    loss = BoxLoss(kind)(CODER, CODER.encode(boxes, references), boxes, references, EVERY[:9])
    assert loss.tolist() == pytest.approx([0] * 9, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_descent_reaches_the_boxes(kind):
    boxes, references = random_boxes(4), random_boxes(4)
    deltas = torch.zeros(4, 4, requires_grad=True)
    optimizer = torch.optim.Adam([deltas], lr=0.1)
    for _ in range(400):
        optimizer.zero_grad()
        BoxLoss(kind)(CODER, deltas, boxes, references, EVERY[:4]).sum().backward()
        optimizer.step()
    torch.testing.assert_close(CODER.decode(deltas, references), boxes, atol=1.0, rtol=0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_without_boxes_it_is_zero_and_connected(kind):
    deltas = torch.zeros(0, 4, requires_grad=True)
    none = torch.zeros(0, 4)
    loss = BoxLoss(kind)(CODER, deltas, none, none, EVERY[:0]).sum()
    loss.backward()
    assert loss.item() == 0
    assert deltas.grad is not None


@pytest.mark.parametrize("padding", [0.0, float("nan"), float("inf"), -1e30])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_counted_changes_nothing(kind, padding):
    counted = torch.tensor([True, False, True, False])
    inputs = [torch.randn(4, 4), random_boxes(4), random_boxes(4)]
    for values in inputs:
        values[~counted] = padding
    deltas = inputs[0].requires_grad_()
    loss = BoxLoss(kind)(CODER, *inputs, counted)
    loss.sum().backward()
    some = [values.detach()[counted] for values in inputs]
    alone = BoxLoss(kind)(CODER, some[0].requires_grad_(), *some[1:], EVERY[:2])
    alone.sum().backward()
    assert torch.equal(loss[counted], alone)
    assert torch.equal(deltas.grad[counted], some[0].grad)
    assert not loss[~counted].any()
    assert not deltas.grad[~counted].any()
    none = BoxLoss(kind)(CODER, *inputs, torch.zeros(4, dtype=torch.bool))
    assert none.tolist() == [0] * 4


@pytest.mark.parametrize("part", ["RPN", "ROI_BOX_HEAD"])
def test_each_part_by_its_own_keys(tiny_config, make_batch, part):
    images, targets = make_batch(2, 1)
    name = {"RPN": "loss_rpn_box", "ROI_BOX_HEAD": "loss_box"}[part]

    def losses(*opts):
        torch.manual_seed(0)
        model = build_model(tiny_config(*opts))
        found = model(images, targets)
        sum(found.values()).backward()
        return found

    plain = losses()
    key = f"MODEL.{part}.BOX_LOSS"
    for kind in ("l1", "giou"):
        once, twice = losses(key, kind), losses(key, kind, f"{key}_WEIGHT", 2.0)
        assert once[name] != plain[name]
        torch.testing.assert_close(twice[name], 2 * once[name])
        for other in plain.keys() - {name}:
            torch.testing.assert_close(once[other], plain[other])
