import math

import pytest
import torch
import torchvision

from detlite.ops import sigmoid_focal_loss

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
# The loss itself is never of a half type; only its gradient rounds to one.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 3e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def logits_and_targets(shape=(3, 701), dtype=torch.float32, soft=False):  # blocks and a remainder
    logits = torch.randn(shape).to(dtype) * 4
    targets = torch.rand(shape) if soft else (torch.rand(shape) < 0.3).float()
    return logits, targets.to(dtype)


def in_double(logits, targets, alpha, gamma, factors=1):
    """torchvision's losses and the gradient of their sum with factors, in float64."""
    logits = logits.detach().cpu().double().requires_grad_()
    loss = torchvision.ops.sigmoid_focal_loss(logits, targets.cpu().double(), alpha, gamma)
    (grad,) = torch.autograd.grad((loss * factors).sum(), logits)
    return loss.detach(), grad


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize(
    ("alpha", "gamma"), [(0.25, 2.0), (-1.0, 2.0), (0.7, 1.5), (0.25, 1.0), (0.4, 0.0)]
)
def test_matches_torchvision(device, dtype, soft, alpha, gamma):
    logits, targets = logits_and_targets(dtype=dtype, soft=soft)
    factors = torch.rand(logits.shape)
    expected, expected_grad = in_double(logits, targets, alpha, gamma, factors)
    logits = logits.to(device).requires_grad_()
    loss = sigmoid_focal_loss(logits, targets.to(device), alpha, gamma)
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    exact = TOLERANCE[loss.dtype]
    torch.testing.assert_close(loss.cpu().double(), expected, rtol=exact, atol=exact)

    (loss * factors.to(device)).sum().backward()
    assert logits.grad.dtype == dtype
    rounded = TOLERANCE[dtype]
    torch.testing.assert_close(
        logits.grad.cpu().double(), expected_grad, rtol=rounded, atol=rounded / 10
    )


def test_reductions(device):
    logits, targets = (x.to(device) for x in logits_and_targets())
    loss = sigmoid_focal_loss(logits, targets)
    assert torch.equal(sigmoid_focal_loss(logits, targets, reduction="sum"), loss.sum())
    assert torch.equal(sigmoid_focal_loss(logits, targets, reduction="mean"), loss.mean())
    with pytest.raises(ValueError, match="reduction must be 'none', 'mean' or 'sum', not 'max'"):
        sigmoid_focal_loss(logits, targets, reduction="max")


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_extreme_logits(device, dtype, gamma):
    sizes = [0.0, 1e-30, 15, 80, 90, 150, 800, 1e4, 1e30]
    logits = torch.tensor([s * x for x in sizes for s in (-1, 1)], dtype=dtype, device=device)
    for target in (0, 1):
        right = logits > 0 if target else logits < 0
        own = logits.clone().requires_grad_()
        loss = sigmoid_focal_loss(own, torch.full_like(own, target), -1, gamma)
        (grad,) = torch.autograd.grad(loss.sum(), own)
        assert loss.isfinite().all()
        assert grad.isfinite().all()
        sure = logits.abs() >= 80
        assert (loss[right & sure] < 1e-15).all()
        assert (grad[right & sure].abs() < 1e-15).all()
        torch.testing.assert_close(loss[~right & sure], logits[~right & sure].abs())
        torch.testing.assert_close(grad[~right & sure].abs(), torch.ones_like(grad[~right & sure]))


def test_confident_predictions_keep_relative_precision(device):
    logits = torch.tensor([12.0, 20.0, 30.0], device=device)
    expected = in_double(logits, torch.ones(3), 0.25, 2.0)[0]
    # In float64, 1 - p of the last one has three digits left.
    loss = sigmoid_focal_loss(logits, torch.ones(3, device=device))
    torch.testing.assert_close(loss.cpu().double()[:2], expected[:2], rtol=1e-5, atol=0)
    exact = 0.25 * math.exp(-30) ** 3
    torch.testing.assert_close(loss.cpu().double()[2].item(), exact, rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 3, 4, 5, 8, 9, 1030])
def test_unaligned_views(device, dtype, count):
    logits, targets = (x.to(device) for x in logits_and_targets((count,), dtype, soft=True))
    logits.requires_grad_()
    loss = sigmoid_focal_loss(logits, targets)
    factors = torch.rand_like(loss)
    expected = [loss, *torch.autograd.grad(loss, logits, factors, retain_graph=True)]
    same = torch.autograd.grad(loss.sum(), logits)[0]

    def shifted(x, by):
        return torch.cat([x.detach()[:by], x.detach()])[min(by, count) :]

    for shifts in [(1, 0, 0), (0, 1, 0), (0, 0, 1), (2, 2, 2), (3, 1, 2)]:
        own, label, factor = map(shifted, (logits, targets, factors), shifts)
        own.requires_grad_()
        actual = sigmoid_focal_loss(own, label)
        gradient = torch.autograd.grad(actual, own, factor, retain_graph=True)[0]
        # nvcc fuses multiplications and additions differently in the kernels of packs and elements.
        rtol = 1e-5 if device == "cuda" else 0
        torch.testing.assert_close(actual, expected[0], rtol=rtol, atol=0)
        torch.testing.assert_close(gradient, expected[1], rtol=rtol, atol=0)
        torch.testing.assert_close(
            torch.autograd.grad(actual.sum(), own)[0], same, rtol=rtol, atol=0
        )


def test_nan_propagates(device):
    logits = torch.tensor([math.nan, 1.0], device=device).repeat(9)
    loss = sigmoid_focal_loss(logits, torch.ones_like(logits))
    assert torch.equal(loss.isnan(), logits.isnan())


def test_empty_and_scalar_and_strided(device):
    empty = torch.zeros(0, 5, device=device, requires_grad=True)
    sigmoid_focal_loss(empty, torch.zeros(0, 5, device=device)).sum().backward()
    assert empty.grad.shape == (0, 5)
    one = torch.tensor(0.0, device=device)
    torch.testing.assert_close(sigmoid_focal_loss(one, one).item(), 0.75 * 0.25 * math.log(2))
    logits, targets = (x.to(device) for x in logits_and_targets((6, 8)))
    expected = sigmoid_focal_loss(logits, targets)
    turned = sigmoid_focal_loss(logits.t().contiguous().t(), targets.bool())
    assert torch.equal(turned, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_opcheck(device, dtype):
    logits, targets = (x.to(device) for x in logits_and_targets((4, 5), dtype))
    logits.requires_grad_()
    settings = targets, 0.25, 2.0
    torch.library.opcheck(torch.ops.detlite.sigmoid_focal_loss_forward, (logits, *settings))
    arguments = torch.rand(4, 5, device=device), logits.detach(), *settings
    torch.library.opcheck(torch.ops.detlite.sigmoid_focal_loss_backward, arguments)
