import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from detlite.modeling.backbone.timm.vit import TimmViT, _run
from detlite.modeling.backbone.vit import ViTOptions

timm = pytest.importorskip("timm", reason="timm is not installed")

NAME = "test_vit"  # from timm's tests: 6 blocks of width 64
ROPE = "vit_tiny_patch16_dinov3_qkvb"  # rotary, without a position embedding
MIXED = "vit_small_patch16_rope_mixed_224"  # rotary embeddings per block
# With the class token inside or outside the position embedding, without it, with registers.
NAMES = [NAME, "test_vit2", "deit_tiny_distilled_patch16_224", ROPE, MIXED]


def lively(backbone: TimmViT) -> TimmViT:
    """Set layer scales, which are initially 1e-5, so that all layers have an effect."""
    with torch.no_grad():
        for name, parameter in backbone.named_parameters():
            if "gamma" in name or "ls" in name:
                parameter.fill_(0.5)
            elif parameter.dim() == 1 or "token" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return backbone.eval()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [(64, 96), (224, 224)])
@torch.no_grad()
def test_map_without_windows_matches_timm(name, size):
    backbone = lively(TimmViT(name, ViTOptions()))
    x = torch.randn(2, 3, *size)
    (result,) = backbone(x)
    tokens = backbone.net.forward_features(x)[:, backbone.net.num_prefix_tokens :]
    reference = tokens.transpose(1, 2).unflatten(2, (size[0] // 16, size[1] // 16))
    torch.testing.assert_close(result, reference, rtol=1e-4, atol=1e-4)
    assert result.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", [NAME, ROPE])
@torch.no_grad()
def test_windows_are_independent(name):
    """Windows exchange information only through prefix tokens, which are excluded here."""
    x = torch.randn(1, 3, 128, 96)
    changed = x.clone()
    changed[:, :, 64:] = 0  # the lower two of four windows
    backbone = lively(TimmViT(name, ViTOptions(window=4, global_blocks=0)))
    backbone.net.blocks = backbone.net.blocks[:1]
    backbone.windows = backbone.windows[:1]
    (before,), (after,) = backbone(x), backbone(changed)
    torch.testing.assert_close(before[:, :, :4], after[:, :, :4])
    assert not torch.allclose(before[:, :, 4:], after[:, :, 4:])
    backbone.windows = [0]
    assert not torch.allclose(backbone(x)[0][:, :, :4], backbone(changed)[0][:, :, :4])


@torch.no_grad()
def test_windows_attend_to_their_patches_and_prefix_tokens():
    backbone = lively(TimmViT("test_vit2", ViTOptions(window=4, global_blocks=0)))
    backbone.net.blocks, backbone.windows = backbone.net.blocks[:1], [4]
    x, block = torch.randn(1, 3, 128, 64), backbone.net.blocks[0]
    embedded = backbone.net.norm_pre(backbone.net._pos_embed(backbone.net.patch_embed(x)))
    before, patches = embedded[:, :1], embedded[:, 1:].unflatten(1, (8, 4))
    upper = block(torch.cat([before, patches[:, :4].flatten(1, 2)], 1))
    lower = block(torch.cat([before, patches[:, 4:].flatten(1, 2)], 1))
    # The prefix tokens become the mean over the windows.
    mean = (upper[:, :1] + lower[:, :1]) / 2
    tokens = _run(block, None, 1, (8, 4, 4), embedded)
    torch.testing.assert_close(tokens[:, :1], mean, rtol=1e-4, atol=1e-4)
    reference = backbone.net.norm(torch.cat([upper[:, 1:], lower[:, 1:]], 1))
    reference = reference.transpose(1, 2).unflatten(2, (8, 4))
    torch.testing.assert_close(backbone(x)[0], reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [NAME, ROPE, MIXED])
def test_everything_is_computed_on_the_device(name):
    """Fake CUDA tensors can neither be read nor combined with CPU tensors."""
    backbone = TimmViT(name, ViTOptions(window=3, drop_path=0.1)).train()
    with FakeTensorMode() as mode:
        for module in backbone.modules():
            for own in (module._parameters, module._buffers):
                for key, value in own.items():
                    fake = None if value is None else mode.from_tensor(value).to("cuda")
                    own[key] = nn.Parameter(fake) if isinstance(value, nn.Parameter) else fake
        (result,) = backbone(torch.randn(2, 3, 96, 64, device="cuda"))
        assert result.device.type == "cuda"
        assert result.shape == (2, *backbone.channels, 6, 4)
