from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from detlite import optimize
from detlite.apps.export.exported_program import example_batch
from detlite.modeling.backbone import build_backbone, vit
from detlite.modeling.backbone.timm.vit import TimmViT
from detlite.modeling.backbone.vit import Attention, Block, ViT, ViTOptions
from detlite.modeling.backbone.windows import from_windows, global_blocks, to_windows
from detlite.modeling.build import build_model
from tests.builders import tiny_config


def lively(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        parameter.data.normal_(std=0.3)
    return module


def test_attention_adds_relative_positions_of_rows_and_columns():
    height, width, heads = 3, 4, 2
    attention = lively(Attention(8, heads, 4)).double()
    attention.rel_pos_h = nn.Parameter(torch.randn(2 * height - 1, 4).double())
    x = torch.randn(2, height, width, 8).double()
    q, k, v = attention.qkv(x).reshape(2, height * width, 3, heads, 4).permute(2, 0, 3, 1, 4)
    row, column = torch.arange(height * width) // width, torch.arange(height * width) % width
    down = attention.rel_pos_h[row[:, None] - row + height - 1]
    right = attention.rel_pos_w[column[:, None] - column + width - 1]
    logits = q @ k.transpose(2, 3) / 2 + ((down + right) * q[:, :, :, None]).sum(4)
    reference = attention.proj((logits.softmax(3) @ v).transpose(1, 2).flatten(2)).view_as(x)
    torch.testing.assert_close(attention(x), reference)


def test_relative_positions_are_interpolated():
    attention = lively(Attention(8, 2, 4))
    other = Attention(8, 2, 6)
    other.load_state_dict(attention.state_dict() | {
        name: F.interpolate(getattr(attention, name).T[None], size=11, mode="linear")[0].T
        for name in ("rel_pos_h", "rel_pos_w")
    })  # fmt: skip
    x = torch.randn(1, 6, 6, 8)
    torch.testing.assert_close(attention(x), other(x))


def test_windows_attend_to_their_patches_and_padding():
    block = lively(Block(8, 2, 3, True, 0.0))
    x = torch.randn(2, 4, 3, 8)
    normed = F.pad(block.norm1(x), (0, 0, 0, 0, 0, 2))
    added = torch.cat([block.attn(normed[:, :3]), block.attn(normed[:, 3:])], 1)[:, :4]
    reference = x + added
    torch.testing.assert_close(block(x), reference + block.mlp(block.norm2(reference)))


def test_drop_path_skips_branches_per_image():
    block = lively(Block(8, 2, 3, False, 0.5)).train()
    x = torch.randn(64, 2, 2, 8)
    whole = block.norm1(x)
    whole = x + 2 * block.attn(whole)  # scaled by 1 / keep probability
    both = whole + 2 * block.mlp(block.norm2(whole))
    second = x + 2 * block.mlp(block.norm2(x))
    kinds = [0, 0, 0, 0]
    for image, result in enumerate(block(x)):
        options = [x[image], whole[image], second[image], both[image]]
        kinds[[torch.allclose(result, one, atol=1e-4) for one in options].index(True)] += 1
    assert min(kinds) >= 5
    torch.testing.assert_close(block.eval()(x), block(x))


@pytest.mark.parametrize("kind", ["own", "timm"])
def test_frozen_blocks_drop_nothing(kind):
    if kind == "own":
        blocks = ViT(16, 6, 2, 64, ViTOptions(freeze_at=3, drop_path=0.5)).blocks
        dropping = [block.drop_path > 0 for block in blocks]
    else:
        pytest.importorskip("timm", reason="timm is not installed")
        blocks = TimmViT("test_vit", ViTOptions(freeze_at=3, drop_path=0.5)).net.blocks
        dropping = [not isinstance(block.drop_path2, nn.Identity) for block in blocks]
    assert dropping == [False] * 3 + [True] * 3


# ---- detectors


@pytest.fixture(params=["own", "timm/test_vit-SFP", "timm/vit_tiny_patch16_dinov3_qkvb-SFP"])
def config(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`config(*opts)`: a detector with a transformer of few blocks, most with windows."""
    name = "ViT-T-SFP" if request.param == "own" else request.param
    if name.startswith("timm"):
        pytest.importorskip("timm", reason="timm is not installed")
    monkeypatch.setitem(vit.SIZES, "T", (32, 3, 2))
    keys = ["MODEL.BACKBONE.CONV_BODY", name, "MODEL.VIT.WINDOW", 3, "MODEL.VIT.GLOBAL_BLOCKS", 2,
            "MODEL.VIT.IMAGE_SIZE", 96]  # fmt: skip
    return partial(tiny_config, *keys)


@pytest.mark.slow
def test_backbones_compile_and_export(config):
    backbone = build_backbone(config("MODEL.VIT.DROP_PATH", 0.1)).body
    blocks = getattr(backbone, "net", backbone).blocks
    del blocks[3:]
    backbone.windows = [0, 3, 0]
    x = torch.randn(2, 3, 96, 128)
    compiled = torch.compile(backbone, fullgraph=True, backend="aot_eager")
    compiled(x)[0].sum().backward()
    assert [n for n, p in backbone.named_parameters() if p.requires_grad and p.grad is None] == []
    torch._dynamo.reset()
    backbone.eval()
    auto = torch.export.Dim.AUTO
    with torch.no_grad():
        shapes = ({0: auto, 2: auto, 3: auto},)
        graph = torch.export.export(backbone, (x,), dynamic_shapes=shapes).module()
        for size in ((1, 3, 160, 64), (3, 3, 90, 130)):
            x = torch.randn(size)
            torch.testing.assert_close(graph(x), backbone(x), rtol=1e-4, atol=1e-4)


def test_exported_programs_need_two_windows(config):
    assert build_model(config()).backbone.min_image_side == 128  # two cells of P6
    model = build_model(config("MODEL.VIT.WINDOW", 19))
    assert model.backbone.min_image_side == 320
    assert model.backbone.body.min_image_side > 19 * 16 >= 320 - 32
    sides = example_batch(model)[0].pixels.shape[2:]
    assert min(sides) >= 320


@torch.no_grad()
def test_optimized_backbone_is_the_same(config):
    model = build_model(config()).eval()
    x = torch.randn(1, 3, 96, 64)
    reference = model.backbone(x)
    torch.testing.assert_close(optimize(model, "float32").backbone(x), reference)
    for level, expected in zip(optimize(model, "bfloat16").backbone(x), reference, strict=True):
        assert level.dtype == torch.bfloat16
        assert (level.float() - expected).norm() < 0.03 * expected.norm()


@pytest.mark.parametrize("size", [(6, 9), (4, 4), (5, 7), (2, 3)])
def test_windows_are_ordered_row_by_row(size):
    side, (height, width) = 3, size
    x = torch.randn(2, height, width, 5)
    windows = to_windows(x, side)
    rows, columns = -(-height // side), -(-width // side)
    assert windows.shape == (2 * rows * columns, side, side, 5)
    for number, window in enumerate(windows):
        image, place = divmod(number, rows * columns)
        top, left = (side * at for at in divmod(place, columns))
        own = x[image, top : top + side, left : left + side]
        assert torch.equal(window[: own.shape[0], : own.shape[1]], own)
        assert not window[own.shape[0] :].any()
        assert not window[:, own.shape[1] :].any()
    assert torch.equal(from_windows(windows, 2, height, width), x)


@pytest.mark.parametrize(
    ("depth", "count", "numbers"),
    [
        (12, 4, {2, 5, 8, 11}),
        (24, 4, {5, 11, 17, 23}),
        (32, 4, {7, 15, 23, 31}),
        (12, 0, set()),
        (2, 4, {0, 1}),
    ],
)
def test_global_blocks_match_vitdet(depth, count, numbers):
    assert global_blocks(depth, count) == numbers
