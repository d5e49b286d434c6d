import pytest
import torch
from torch import nn
from torchvision.ops import FrozenBatchNorm2d as TorchvisionFrozenBatchNorm2d

from detlite.config import load_config
from detlite.modeling.layers.norm import (
    FrozenBatchNorm2d,
    GroupNorm,
    LevelBatchNorm,
    build_norm,
    freeze_batch_norm,
    group_norm,
    to_frozen_norm,
)


def randomize(norm: nn.Module) -> nn.Module:
    for name, tensor in norm.state_dict().items():
        if tensor.is_floating_point():
            tensor.data.copy_(
                torch.rand_like(tensor) + (0.5 if name.endswith("running_var") else -0.5)
            )
    return norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("eps", [1e-5, 0.0])
def test_frozen_norm_matches_torchvision(dtype, memory_format, eps):
    ours = randomize(FrozenBatchNorm2d(5, eps))
    theirs = TorchvisionFrozenBatchNorm2d(5, eps)
    theirs.load_state_dict(ours.state_dict())
    if dtype == torch.float64:
        ours, theirs = ours.double(), theirs.double()
    x = torch.randn(2, 5, 7, 6).to(dtype).contiguous(memory_format=memory_format)
    inputs = [x.clone().requires_grad_(), x.to(theirs.weight.dtype).requires_grad_()]
    results = [norm(x) for norm, x in zip((ours, theirs), inputs, strict=True)]
    assert results[0].dtype == dtype
    assert results[0].is_contiguous(memory_format=memory_format)
    up = torch.randn_like(x)
    for result in results:
        result.backward(up.to(result.dtype))
    close = {"rtol": 1e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(results[0], results[1].to(dtype), **close)
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad.to(dtype), **close)
    with torch.no_grad():
        torch.testing.assert_close(ours(inputs[0]), results[0])
    assert not list(ours.parameters())


def test_frozen_norm_saves_no_map():
    norm, x = FrozenBatchNorm2d(3), torch.randn(2, 3, 16, 16, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, id):
        norm(x * 2)
    assert sum(kept) < x.numel()


def test_freezing_a_level_norm_keeps_the_shared_scale():
    """The epsilon stays, and other batch norms are frozen, too."""
    other = nn.Sequential(nn.SyncBatchNorm(4, eps=0.3))
    freeze_batch_norm(other)
    assert (type(other[0]), other[0].eps) == (FrozenBatchNorm2d, 0.3)
    backbone = nn.ModuleList([LevelBatchNorm(6, 2, nn.BatchNorm2d)]).eval()
    randomize(backbone[0])
    x = torch.randn(2, 6, 4, 4)
    expected = [backbone[0](x, level) for level in (0, 1)]
    freeze_batch_norm(backbone)
    assert type(backbone[0][1]) is FrozenBatchNorm2d
    torch.testing.assert_close([backbone[0](x, level) for level in (0, 1)], expected)


@pytest.mark.parametrize("name", ["BatchNormAct2d", "BatchNorm2d"])
def test_freezing_keeps_the_activation_of_timm_norms(name):
    layers = pytest.importorskip("timm.layers", reason="timm is not installed")
    kinds = {"BatchNormAct2d": layers.BatchNormAct2d, "BatchNorm2d": nn.BatchNorm2d}
    norm = randomize(kinds[name](6)).eval()
    x = torch.randn(2, 6, 4, 4)
    ours, theirs = to_frozen_norm(norm), layers.freeze_batch_norm_2d(norm)
    torch.testing.assert_close(ours(x.clone()), theirs(x.clone()))
    torch.testing.assert_close(ours(x.clone()), norm(x.clone()))
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert not list(ours.parameters())


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("size", [(7, 5), (1, 1), (81, 64)])
@pytest.mark.parametrize("training", [False, True])
def test_group_norm_matches_torch(memory_format, training, size):
    norm = randomize(GroupNorm(4, 12, eps=1e-3))
    x = torch.randn(2, 12, *size).contiguous(memory_format=memory_format)
    expected = nn.functional.group_norm(
        x.double(), 4, norm.weight.double(), norm.bias.double(), 1e-3
    )
    with torch.set_grad_enabled(training):
        result = norm(x)
    assert result.is_contiguous(memory_format=memory_format)
    torch.testing.assert_close(result.double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("gradients", [False, True])
def test_group_norm_of_large_maps_is_exact_in_evaluation(gradients):
    x = torch.randn(1, 32, 200, 304).relu().contiguous(memory_format=torch.channels_last)
    x.requires_grad_(gradients)
    norm = GroupNorm(32, 32).eval()
    expected, result = nn.functional.group_norm(x.double(), 32), norm(x).double()
    torch.testing.assert_close(result, expected, atol=3e-6, rtol=0)
    if gradients:
        weights = torch.rand_like(result)
        actual, right = (torch.autograd.grad((y * weights).sum(), x) for y in (result, expected))
        torch.testing.assert_close(actual, right, atol=1e-5, rtol=1e-4)


def test_group_norm_exports_for_any_size():
    norm = GroupNorm(4, 8)

    def maps(side):
        return torch.rand(2, 8, side, side).contiguous(memory_format=torch.channels_last)

    free = ({2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO},)
    with torch.no_grad():
        program = torch.export.export(norm, (maps(100),), dynamic_shapes=free)
        for side in (20, 130):  # below and above _EXACT_PIXELS
            x = maps(side)
            torch.testing.assert_close(program.module()(x), norm(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 12, 20, 17), (0, 12, 5, 5)])
def test_gradients_of_group_norm_match_torch_in_float64(dtype, shape):
    norm = randomize(GroupNorm(4, 12))
    x = (torch.randn(shape) + 3).to(dtype).contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    gradient = torch.randn(shape).to(dtype)
    norm(x).backward(gradient)
    oracle = nn.GroupNorm(4, 12, dtype=torch.float64)
    oracle.load_state_dict(norm.state_dict())
    exact = x.detach().double().requires_grad_()
    oracle(exact).backward(gradient.double())
    assert (x.grad.dtype, norm.weight.grad.dtype) == (dtype, torch.float32)
    assert x.grad.is_contiguous(memory_format=torch.channels_last)
    for own, expected in ((x, exact), (norm.weight, oracle.weight), (norm.bias, oracle.bias)):
        largest = expected.grad.abs().max().item() if expected.grad.numel() else 0
        error = largest * (2**-7 if dtype == torch.bfloat16 else 1e-5)
        torch.testing.assert_close(own.grad.double(), expected.grad, rtol=0, atol=error)


@pytest.mark.parametrize(
    ("groups", "per_group", "reference"), [(4, -1, 4), (-1, 4, 8), (32, -1, 32), (1, 0, 1)]
)
def test_group_norm_by_groups_or_by_channels(groups, per_group, reference):
    norm = group_norm(32, groups, per_group, 1e-3)
    assert (norm.num_groups, norm.num_channels, norm.eps) == (reference, 32, 1e-3)


@pytest.mark.parametrize(
    "groups", [(32, 8), (-1, -1), (0, 0), (5, -1), (-1, 5), (128, -1), (-1, 128)]
)
def test_groups_that_do_not_divide_channels(groups):
    with pytest.raises(ValueError, match=r"cannot split 64 .*GROUP_NORM.NUM_GROUPS is .*Set one"):
        group_norm(64, *groups, 1e-5)


def test_build_norm():
    keys = "MODEL.GROUP_NORM."
    cfg = load_config(
        None, [keys + "NUM_GROUPS", -1, keys + "DIM_PER_GP", 16, keys + "EPSILON", 0.5]
    )
    kinds = {"FrozenBN": FrozenBatchNorm2d, "BN": nn.BatchNorm2d, "SyncBN": nn.SyncBatchNorm,
             "GN": GroupNorm, "LN": nn.LayerNorm}  # fmt: skip
    for name, kind in kinds.items():
        assert isinstance(build_norm(cfg, name)(64), kind)
    norm = build_norm(cfg, "GN")(64)
    assert (norm.num_groups, norm.eps) == (4, 0.5)
