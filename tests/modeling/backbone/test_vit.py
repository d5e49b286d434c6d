from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from yacs.config import CfgNode

from detlite import optimize
from detlite.apps.export.exported_program import example_batch
from detlite.modeling.backbone import vit
from detlite.modeling.backbone.vit import Attention, Block, ViT, ViTOptions
from detlite.modeling.build import build_model
from tests.modeling.family import assert_same_detections, family_batch
from tests.modeling.test_static_shapes import Inference


@pytest.fixture
def config(
    tiny_config: Callable[..., CfgNode], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., CfgNode]:
    """`config(*opts)`: a detector with a transformer of three blocks, the second with windows."""
    monkeypatch.setitem(vit.SIZES, "T", (32, 3, 2))

    def load(*opts: Any) -> CfgNode:
        return tiny_config(
            "MODEL.BACKBONE.CONV_BODY", "ViT-T-SFP", "MODEL.VIT.WINDOW", 3,
            "MODEL.VIT.GLOBAL_BLOCKS", 2, "MODEL.VIT.IMAGE_SIZE", 96, *opts,
        )  # fmt: skip

    return load


def lively(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        parameter.data.normal_(std=0.3)
    return module


def test_attention_adds_relative_positions_of_rows_and_columns():
    height, width, heads = 3, 4, 2
    attention = lively(Attention(8, heads, 4)).double()
    attention.rel_pos_h = nn.Parameter(torch.randn(2 * height - 1, 4).double())
    x = torch.randn(2, height, width, 8).double()
    qkv = attention.qkv(x).reshape(2, height * width, 3, heads, 4)
    result = torch.zeros(2, height * width, heads, 4).double()
    for image in range(2):
        for head in range(heads):
            q, k, v = qkv[image, :, :, head].unbind(1)
            logits = q @ k.T / 2
            for a in range(height * width):
                for b in range(height * width):
                    down, right = a // width - b // width, a % width - b % width
                    logits[a, b] += q[a] @ attention.rel_pos_h[down + height - 1]
                    logits[a, b] += q[a] @ attention.rel_pos_w[right + width - 1]
            result[image, :, head] = logits.softmax(1) @ v
    reference = attention.proj(result.flatten(2)).view_as(x)
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
    assert torch.equal(block.eval()(x), block(x))


def test_frozen_blocks_drop_nothing():
    backbone = ViT(16, 4, 2, 64, ViTOptions(freeze_at=3, drop_path=0.3))
    assert [block.drop_path for block in backbone.blocks] == pytest.approx([0.0, 0.0, 0.2, 0.3])


@pytest.mark.slow
def test_detector_compiles_and_exports(config):
    model = build_model(config("MODEL.VIT.DROP_PATH", 0.1))
    model.static_shapes = True
    assert [block.window for block in model.backbone.body.blocks] == [0, 3, 0]
    images, truth, _ = family_batch(model)
    losses = torch.compile(model.losses, fullgraph=True, backend="aot_eager")(images, truth)
    torch.stack(list(losses.values())).sum().backward()
    assert [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None] == []
    torch._dynamo.reset()
    model.eval()
    auto = torch.export.Dim.AUTO
    shapes = ([{0: auto, 2: auto, 3: auto}, {0: auto}], None)
    with torch.no_grad():
        program = torch.export.export(Inference(model), (images, None), dynamic_shapes=shapes)
        for sizes in ([(96, 128), (90, 70)] * 2, [(70, 96)], [(160, 150)]):
            others, _ = model.prepare([torch.rand(3, *size) for size in sizes])
            assert_same_detections(model.predict(others), program.module()(others, None))


def test_exported_programs_need_two_windows(config):
    assert build_model(config()).backbone.min_image_side == 128  # two cells of P6
    model = build_model(config("MODEL.VIT.WINDOW", 19))
    assert model.backbone.min_image_side == 320
    assert model.backbone.body.min_image_side > 19 * 16 >= 320 - 32
    sides = example_batch(model)[0].pixels.shape[2:]
    assert min(sides) >= 320


def test_optimized_detector_is_the_same(config):
    model = build_model(config()).eval()
    images = [torch.rand(3, 64, 96), torch.rand(3, 80, 72)]
    for result, expected in zip(
        optimize(model, "float32").detect(images), model.detect(images), strict=True
    ):
        assert len(expected.scores) > 0
        torch.testing.assert_close(result.boxes, expected.boxes, rtol=1e-4, atol=1e-3)
    optimize(model, "bfloat16").detect(images)
