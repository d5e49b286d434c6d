import pytest
import torch
from torch import nn

from detlite.modeling.layers.group_norm import GroupNorm, _GroupNorm


def with_random_weights(norm: nn.GroupNorm) -> nn.GroupNorm:
    nn.init.uniform_(norm.weight, 0.5, 2)
    nn.init.normal_(norm.bias)
    return norm


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("size", [(7, 5), (1, 1), (81, 64)])
@pytest.mark.parametrize("training", [False, True])
def test_matches_torch(memory_format, training, size):
    norm = with_random_weights(GroupNorm(4, 12, eps=1e-3))
    x = torch.randn(2, 12, *size).contiguous(memory_format=memory_format)
    expected = nn.functional.group_norm(
        x.double(), 4, norm.weight.double(), norm.bias.double(), 1e-3
    )
    with torch.set_grad_enabled(training):
        result = norm(x)
    assert result.is_contiguous(memory_format=memory_format)
    torch.testing.assert_close(result.double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("gradients", [False, True])
def test_large_maps_are_exact_in_evaluation(gradients):
    x = torch.randn(1, 32, 200, 304).relu().contiguous(memory_format=torch.channels_last)
    x.requires_grad_(gradients)
    norm = GroupNorm(32, 32).eval()
    expected, result = nn.functional.group_norm(x.double(), 32), norm(x).double()
    torch.testing.assert_close(result, expected, atol=3e-6, rtol=0)
    if gradients:
        weights = torch.rand_like(result)
        actual, right = (torch.autograd.grad((y * weights).sum(), x) for y in (result, expected))
        torch.testing.assert_close(actual, right, atol=1e-5, rtol=1e-4)


def test_exports_for_any_size():
    norm = GroupNorm(4, 8)

    def maps(side):
        return torch.rand(2, 8, side, side).contiguous(memory_format=torch.channels_last)

    free = ({2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO},)
    with torch.no_grad():
        program = torch.export.export(norm, (maps(100),), dynamic_shapes=free)
        for side in (20, 130):  # below and above _EXACT_PIXELS
            x = maps(side)
            torch.testing.assert_close(program.module()(x), norm(x), rtol=1e-3, atol=1e-3)


def maps(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return channels-last maps around 3; a mean far from 0 reduces precision."""
    x = (torch.randn(shape) + 3).to(dtype)
    return x.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2**-7)]
)
@pytest.mark.parametrize("groups", [1, 4, 12])
@pytest.mark.parametrize("shape", [(3, 12, 20, 17), (1, 12, 3, 2), (0, 12, 5, 5)])
def test_gradients_match_torch_in_float64(dtype, error, groups, shape):
    norm = with_random_weights(GroupNorm(groups, 12))
    if dtype == torch.float64:
        norm.double()
    x = maps(*shape, dtype=dtype).requires_grad_()
    gradient = torch.randn(shape).to(dtype)  # not channels-last
    _GroupNorm.apply(x, norm.weight, norm.bias, groups, norm.eps).backward(gradient)
    oracle = nn.GroupNorm(groups, 12, dtype=torch.float64)
    oracle.load_state_dict(norm.state_dict())
    exact = x.detach().double().contiguous().requires_grad_()
    oracle(exact).backward(gradient.double())
    assert x.grad.dtype == dtype
    assert x.grad.is_contiguous(memory_format=torch.channels_last)
    for result, expected in (
        (x.grad, exact.grad),
        (norm.weight.grad, oracle.weight.grad),
        (norm.bias.grad, oracle.bias.grad),
    ):
        assert result.shape == expected.shape
        largest = expected.abs().max().item() if expected.numel() else 0
        torch.testing.assert_close(result.double(), expected, rtol=0, atol=error * largest)


def test_gradients_of_parameters_only():
    norm = with_random_weights(GroupNorm(2, 4))
    norm.bias.requires_grad_(False)
    norm(maps(2, 4, 5, 6, dtype=torch.bfloat16)).sum().backward()  # no gradient of the map
    assert norm.weight.grad is not None
    assert norm.bias.grad is None


def test_compiled_training_is_the_same():
    """The compiled layer is torch's; in torch 2.11, it accepts only maps with gradients."""
    norm = with_random_weights(GroupNorm(4, 8))
    x = maps(2, 8, 9, 7, dtype=torch.bfloat16).requires_grad_()
    norm(x).square().sum().backward()
    eager, norm.weight.grad = norm.weight.grad, None
    torch.compile(norm, backend="eager")(x).square().sum().backward()
    torch.testing.assert_close(norm.weight.grad, eager, rtol=0.01, atol=0.01)
