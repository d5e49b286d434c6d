"""timm's plain vision transformers as bodies: their maps, windows, what is frozen and decays."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from detlite import optimize
from detlite.config import ConfigError, load_config
from detlite.engine.solver import build_optimizer
from detlite.modeling.backbone.timm_vit import TimmViT, ViTOptions
from detlite.modeling.build import build_model

timm = pytest.importorskip("timm", reason="timm is not installed")

NAME = "test_vit"  # of timm's own tests: 6 blocks of width 64
ROPE = "vit_tiny_patch16_dinov3_qkvb"  # rotates, without a position embedding
MIXED = "vit_small_patch16_rope_mixed_224"  # each block rotates in its own way
# The class token inside and outside the position embedding, none of it, registers.
NAMES = [NAME, "test_vit2", "deit_tiny_distilled_patch16_224", ROPE, MIXED]


def lively(body: TimmViT) -> TimmViT:
    """A body whose layers all matter: scales of what blocks add start at 1e-5."""
    with torch.no_grad():
        for name, parameter in body.named_parameters():
            if "gamma" in name or "ls" in name:
                parameter.fill_(0.5)
            elif parameter.dim() == 1 or "token" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return body.eval()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [(64, 96), (224, 224)])
@torch.no_grad()
def test_without_windows_the_map_is_timms(name, size):
    body = lively(TimmViT(name, ViTOptions()))
    x = torch.randn(2, 3, *size)
    (found,) = body(x)
    tokens = body.net.forward_features(x)[:, body.net.num_prefix_tokens :]
    wanted = tokens.transpose(1, 2).unflatten(2, (size[0] // 16, size[1] // 16))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", [NAME, ROPE, MIXED])
@torch.no_grad()
def test_a_window_as_large_as_the_map_changes_nothing(name):
    x = torch.randn(2, 3, 96, 96)
    bodies = [TimmViT(name, ViTOptions(window=side, global_blocks=0)) for side in (0, 6)]
    lively(bodies[0])
    bodies[1].eval().load_state_dict(bodies[0].state_dict())
    (whole,), (cut,) = (body(x) for body in bodies)
    torch.testing.assert_close(cut, whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [NAME, ROPE])
@torch.no_grad()
def test_windows_do_not_see_each_other(name):
    """But through the tokens before the patches, which this takes out of the comparison."""
    x = torch.randn(1, 3, 128, 96)
    changed = x.clone()
    changed[:, :, 64:] = 0  # the lower two of four windows
    body = lively(TimmViT(name, ViTOptions(window=4, global_blocks=0)))
    body.net.blocks = body.net.blocks[:1]
    body.windows = body.windows[:1]
    (before,), (after,) = body(x), body(changed)
    assert torch.equal(before[:, :, :4], after[:, :, :4])
    assert not torch.equal(before[:, :, 4:], after[:, :, 4:])
    body.windows = [0]
    assert not torch.equal(body(x)[0][:, :, :4], body(changed)[0][:, :, :4])


@torch.no_grad()
def test_a_window_attends_to_its_own_patches_and_the_tokens_before():
    body = lively(TimmViT("test_vit2", ViTOptions(window=4, global_blocks=0)))
    body.net.blocks, body.windows = body.net.blocks[:1], [4]
    x, block = torch.randn(1, 3, 128, 64), body.net.blocks[0]
    embedded = body.net.norm_pre(body.net._pos_embed(body.net.patch_embed(x)))
    before, patches = embedded[:, :1], embedded[:, 1:].unflatten(1, (8, 4))
    upper = block(torch.cat([before, patches[:, :4].flatten(1, 2)], 1))
    lower = block(torch.cat([before, patches[:, 4:].flatten(1, 2)], 1))
    wanted = body.net.norm(torch.cat([upper[:, 1:], lower[:, 1:]], 1))
    wanted = wanted.transpose(1, 2).unflatten(2, (8, 4))
    torch.testing.assert_close(body(x)[0], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [NAME, ROPE])
def test_any_size_is_padded_to_two_patches(name):
    body = TimmViT(name, ViTOptions(window=3)).eval()
    assert body(torch.randn(1, 3, 45, 70))[0].shape == (1, body.channels, 4, 6)


@pytest.mark.parametrize("name", [NAME, "test_vit2", ROPE])
def test_layers_are_the_embedding_and_the_blocks(name):
    body = TimmViT(name, ViTOptions())
    names = {parameter: path for path, parameter in body.net.named_parameters()}
    found = [[names[parameter] for parameter in layer] for layer in body.layers()]
    assert sorted(path for layer in found for path in layer) == sorted(names.values())
    assert len(found) == 1 + len(body.net.blocks)
    for number, layer in enumerate(found[1:]):
        assert all(path.startswith((f"blocks.{number}.", "norm.")) for path in layer)
    assert (name == "test_vit2") != ("norm.weight" in found[-1])  # which has it in its head
    assert any(path.startswith("patch_embed") for path in found[0])


def test_rates_decay_from_block_to_block(tiny_config):
    opts = ["SOLVER.LAYER_DECAY", 0.5, "SOLVER.BASE_LR", 1.0, "SOLVER.BIAS_LR_FACTOR", 1.0]
    model = build_model(sfp_config(tiny_config, *opts))
    groups = build_optimizer(sfp_config(tiny_config, *opts), model).param_groups
    rates = {p: group["lr"] for group in groups for p in group["params"]}
    net = model.backbone.body.net
    assert rates[net.patch_embed.proj.weight] == rates[net.pos_embed] == 0.5**7
    assert [rates[block.mlp.fc1.weight] for block in net.blocks] == [
        0.5 ** (6 - number) for number in range(6)
    ]
    assert all(rates[parameter] == 1.0 for parameter in model.backbone.neck.parameters())


@pytest.mark.parametrize(
    ("freeze_at", "blocks"), [(0, None), (1, 0), (2, 1), (3, 3), (4, 4), (5, 6)]
)
def test_leading_parts_are_frozen(freeze_at, blocks):
    body = TimmViT(NAME, ViTOptions(freeze_at=freeze_at, drop_path=0.5)).train()
    for name, parameter in body.net.named_parameters():
        number = int(name.split(".")[1]) if name.startswith("blocks.") else -1
        number = 5 if name.startswith("norm.") else number
        assert parameter.requires_grad == (blocks is None or number >= blocks), name
    drops = [isinstance(block.drop_path2, nn.Identity) for block in body.net.blocks]
    assert drops == [number < max(1, blocks or 0) for number in range(6)]  # the first never does


def test_drop_path_leaves_out_what_a_block_adds_of_an_image():
    body = lively(TimmViT(NAME, ViTOptions(drop_path=0.9999, window=2, global_blocks=1)))
    body.net.blocks, body.windows = body.net.blocks[-1:], [2]
    x = torch.randn(3, 3, 64, 64)
    with torch.no_grad():
        evaluated = body(x)[0]
        dropped = body.train()(x)[0]
        embedded = body.net.norm(body.net._pos_embed(body.net.patch_embed(x)))[:, 1:]
    torch.testing.assert_close(dropped, embedded.transpose(1, 2).unflatten(2, (4, 4)))
    assert not torch.allclose(evaluated, dropped)


@pytest.mark.parametrize("name", [NAME, ROPE])
def test_checkpoints_keep_less_and_change_no_gradient(name):
    options = {"window": 3, "drop_path": 0.5}
    plain = TimmViT(name, ViTOptions(**options)).train()
    saving = TimmViT(name, ViTOptions(**options, checkpoint_activations=True)).train()
    saving.load_state_dict(plain.state_dict())
    x, kept = torch.randn(2, 3, 96, 96), []
    for body in (plain, saving):
        numbers: dict[int, int] = {}

        def pack(tensor: torch.Tensor, numbers: dict[int, int] = numbers) -> torch.Tensor:
            numbers[tensor.data_ptr()] = tensor.numel()
            return tensor

        torch.manual_seed(0)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            (found,) = body(x)
        own = {parameter.data_ptr() for parameter in body.parameters()}
        kept.append(sum(count for place, count in numbers.items() if place not in own))
        found.square().sum().backward()
    assert kept[1] < 0.3 * kept[0]
    for ours, theirs in zip(saving.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [NAME, ROPE])
def test_graphs_of_any_size_are_traced(name):
    body = lively(TimmViT(name, ViTOptions(window=3, global_blocks=2)))
    auto = torch.export.Dim.AUTO
    free = ({0: auto, 2: auto, 3: auto},)
    graph = torch.export.export(body, (torch.randn(2, 3, 64, 96),), dynamic_shapes=free).module()
    with torch.no_grad():
        for shape in ((1, 3, 160, 64), (3, 3, 90, 130)):
            x = torch.randn(shape)
            torch.testing.assert_close(graph(x), body(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [NAME, ROPE])
def test_bodies_compile_whole(name):
    body = TimmViT(name, ViTOptions(window=3, drop_path=0.1)).train()
    compiled = torch.compile(body, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 3, 96, 64)
    torch.testing.assert_close(compiled.eval()(x), deepcopy(body).eval()(x), rtol=1e-4, atol=1e-4)
    compiled.train()(x)[0].sum().backward()
    assert all(parameter.grad is not None for parameter in body.parameters())
    torch._dynamo.reset()


@pytest.mark.parametrize("name", [NAME, ROPE, MIXED])
def test_all_is_computed_on_the_device(name):
    """On fake CUDA tensors, which cannot be used with others, nor read."""
    body = TimmViT(name, ViTOptions(window=3, drop_path=0.1)).train()
    with FakeTensorMode() as mode:
        for module in body.modules():
            for own in (module._parameters, module._buffers):
                for key, value in own.items():
                    fake = None if value is None else mode.from_tensor(value).to("cuda")
                    own[key] = nn.Parameter(fake) if isinstance(value, nn.Parameter) else fake
        (found,) = body(torch.randn(2, 3, 96, 64, device="cuda"))
        assert found.device.type == "cuda"
        assert found.shape == (2, body.channels, 6, 4)


def test_optimized_bodies_give_the_same(tiny_config):
    model = build_model(sfp_config(tiny_config)).eval()
    x = torch.randn(1, 3, 96, 64)
    with torch.no_grad():
        wanted = model.backbone(x)
        for level, expected in zip(optimize(model, "float32").backbone(x), wanted, strict=True):
            assert torch.equal(level, expected)
        for level, expected in zip(optimize(model, "bfloat16").backbone(x), wanted, strict=True):
            assert level.dtype == torch.bfloat16
            assert (level.float() - expected).norm() < 0.03 * expected.norm()


def sfp_config(tiny_config, *opts):
    return tiny_config("MODEL.BACKBONE.CONV_BODY", f"timm/{NAME}-SFP", "MODEL.VIT.WINDOW", 3, *opts)


def test_detector_by_config_trains_and_detects(tiny_config, make_batch):
    model = build_model(sfp_config(tiny_config, "MODEL.VIT.DROP_PATH", 0.2))
    assert model.backbone.strides == (4, 8, 16, 32, 64)
    assert model.backbone.body.windows == [0, 3, 0, 0, 3, 0]
    images, targets = make_batch(2, 1)
    sum(model(images, targets).values()).backward()
    unused = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert unused == []
    assert len(model.eval()(images)) == 2


def test_levels_are_those_of_any_pyramid(tiny_config):
    load_config(None, ["MODEL.BACKBONE.CONV_BODY", f"timm/{NAME}-SFP",
                       "MODEL.RPN.ANCHOR_STRIDE", (4, 8, 16, 32, 64)])  # fmt: skip
    with pytest.raises(ConfigError, match=r"ANCHOR_SIZES has 3 levels.* gives 5"):
        build_model(sfp_config(tiny_config, "MODEL.RPN.ANCHOR_SIZES", (32, 64, 128)))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("vit_small_patch14_dinov2", "has patches of 14 pixels, .*: use a model of patch16"),
        ("test_convnext", "timm's test_convnext is none"),
        ("beit_base_patch16_224", "timm's beit_base_patch16_224 is none"),
        ("no_such_model", "timm .* has no model 'no_such_model'"),
    ],
)
def test_what_cannot_be_built(tiny_config, body, message):
    with pytest.raises(ConfigError, match=message):
        build_model(tiny_config("MODEL.BACKBONE.CONV_BODY", f"timm/{body}-SFP"))
