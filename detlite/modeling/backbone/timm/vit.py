"""timm's plain vision transformers as backbones for large images, as in ViTDet.

Li et al., Exploring Plain Vision Transformer Backbones for Object Detection,
https://arxiv.org/abs/2203.16527. Shapes: B images, H x W patches of 16 x 16 pixels, P prefix tokens
(class and register tokens), C channels, h heads of D channels, n windows of S x S patches per
image.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from detlite.modeling.backbone.activation_checkpointing import checkpoint_activations
from detlite.modeling.backbone.vit import PATCH, ViTOptions, freeze_layers
from detlite.modeling.backbone.windows import (
    from_windows,
    pad_to_multiple,
    to_windows,
    window_counts,
)

from .models import create_timm_model


class TimmViT(nn.Module):
    """A plain transformer of timm (vit, deit, dinov3, eva02) without its head; returns one map.

    Without windows, the map is the patches of timm's `forward_features`. With windows, each window
    gets a copy of the prefix tokens, and their new value is the mean over windows. The state dict
    has timm's names, prefixed by `net.`.
    """

    def __init__(self, name: str, options: ViTOptions) -> None:
        super().__init__()
        net = create_timm_model(name, options.drop_path)
        _check_plain(net, name)
        net.prune_intermediate_layers(1, prune_norm=False)  # removes the head
        _use_device_rope(net)
        self.net = net
        self.channels, self.strides = [net.embed_dim], (PATCH,)
        self.options = options
        self.min_image_side = options.min_image_side
        self.windows = options.windows(len(net.blocks))
        freeze_layers(self.layers(), options.freeze_at)
        for block in net.blocks:
            if not any(parameter.requires_grad for parameter in block.parameters()):
                block.drop_path1 = block.drop_path2 = nn.Identity()

    def layers(self) -> list[list[nn.Parameter]]:
        """Return the parameters of the embedding and of each block, the norm with the last one."""
        layers: list[list[nn.Parameter]] = [[] for _ in range(1 + len(self.net.blocks))]
        for name, parameter in self.net.named_parameters():
            part, number = [*name.split("."), ""][:2]
            index = int(number) + 1 if part == "blocks" else -1 if part == "norm" else 0
            layers[index].append(parameter)
        return layers

    def forward(self, x: Tensor) -> list[Tensor]:
        """Compute a map [B, C, H, W] from pixels [B, 3, H', W'].

        Sides are padded to multiples of two patches, so that H and W are even.
        """
        x = pad_to_multiple(x, 2 * PATCH)
        height, width = x.shape[2] // PATCH, x.shape[3] // PATCH
        embedded = self.net._pos_embed(self.net.patch_embed(x))
        tokens, ropes = embedded if isinstance(embedded, tuple) else (embedded, None)
        if not getattr(self.net, "rope_mixed", False):  # all blocks share one embedding
            ropes = [ropes] * len(self.net.blocks)
        tokens = self.net.norm_pre(tokens)
        prefix, options = self.net.num_prefix_tokens, self.options
        for block, window, rope in zip(self.net.blocks, self.windows, ropes, strict=True):
            step = partial(_run, block, rope, prefix, (height, width, window))
            if options.checkpoint_activations:
                tokens = checkpoint_activations(block, tokens, step, options.drop_path > 0)
            else:
                tokens = step(tokens)
        tokens = self.net.norm(tokens)[:, prefix:]
        maps = tokens.unflatten(1, (height, width)).permute(0, 3, 1, 2)
        return [maps.contiguous(memory_format=torch.channels_last)]


class _DinoRope(nn.Module):
    """DINOv3's rotary embeddings, computed on the device; timm uses the CPU and waits."""

    def __init__(self, rope: Any) -> None:
        super().__init__()
        self.rope = rope

    def get_embed(self, shape: Sequence[int]) -> Tensor:
        """Return the embeddings [H W, 2 D] of H x W patches with centers in -1..1."""
        axes = [
            (torch.arange(side, device=self.rope.periods.device) + 0.5) / side * 2 - 1
            for side in shape
        ]
        centers = torch.stack(torch.meshgrid(axes, indexing="ij"), dim=-1).flatten(0, 1)
        return torch.cat(self.rope._get_pos_embed_from_coords(centers), dim=-1)


def _use_device_rope(net: Any) -> None:
    from timm.layers import RotaryEmbeddingDinoV3

    rope = getattr(net, "rope", None)
    if isinstance(rope, RotaryEmbeddingDinoV3) and rope.normalize_coords == "separate":
        net.rope = _DinoRope(rope)


def _run(
    block: Any, rope: Tensor | None, prefix: int, size: tuple[int, int, int], tokens: Tensor
) -> Tensor:
    """Run a ViT or EVA block of timm on tokens [B, P + H W, C], see `_attend`."""
    added = _attend(block.attn, rope, prefix, size, block.norm1(tokens))
    added = block.ls1(added) if hasattr(block, "ls1") else _scale(added, block.gamma_1)
    tokens = tokens + block.drop_path1(added)
    added = block.mlp(block.norm2(tokens))
    added = block.ls2(added) if hasattr(block, "ls2") else _scale(added, block.gamma_2)
    return tokens + block.drop_path2(added)


def _scale(x: Tensor, gamma: Tensor | None) -> Tensor:
    return x if gamma is None else x * gamma


def _attend(
    attention: Any, rope: Tensor | None, prefix: int, size: tuple[int, int, int], tokens: Tensor
) -> Tensor:
    """Attend within windows of `size` (H, W, S), each with a copy of the prefix tokens, or to the
    whole map if S is 0. Rotary embeddings are [H W, 2 D] or [h, H W, 2 D]."""
    height, width, side = size
    if not side:
        return attention(tokens) if rope is None else attention(tokens, rope=rope)
    before, patches = tokens[:, :prefix], tokens[:, prefix:]
    rows, columns = window_counts(height, width, side)
    cut = to_windows(patches.unflatten(1, (height, width)), side).flatten(1, 2)  # [B n, S S, C]
    copies = before[:, None].expand(-1, rows * columns, -1, -1).flatten(0, 1)
    windows = torch.cat([copies, cut], dim=1)
    if rope is None:
        attended = attention(windows)
    else:
        heads = 1 if rope.dim() == 2 else rope.shape[0]
        parts = to_windows(rope.view(heads, height, width, rope.shape[-1]), side).flatten(1, 2)
        parts = parts.unflatten(0, (heads, -1)).transpose(0, 1)  # [n, 1 or h, S S, 2 D]
        parts = parts[None].expand(tokens.shape[0], -1, -1, -1, -1).flatten(0, 1)
        attended = attention(windows, rope=parts)
    before = attended[:, :prefix].unflatten(0, (tokens.shape[0], rows * columns)).mean(dim=1)
    cut = attended[:, prefix:].unflatten(1, (side, side))
    patches = from_windows(cut, tokens.shape[0], height, width)
    return torch.cat([before, patches.flatten(1, 2)], dim=1)


def _check_plain(net: Any, name: str) -> None:
    from timm.layers import PatchEmbed
    from timm.models.eva import Eva, EvaBlock
    from timm.models.vision_transformer import Block, VisionTransformer

    if (
        not isinstance(net, (Eva, VisionTransformer))
        or type(net.patch_embed) is not PatchEmbed
        or any(type(block) not in (Block, EvaBlock) for block in net.blocks)
    ):
        raise ValueError(
            f"MODEL.BACKBONE.CONV_BODY: -SFP needs a plain vision transformer (vit_*, deit*, "
            f"eva02_*, *_dinov3), which timm's {name} is not: use -FPN, -C4 or -C5"
        )
    if net.patch_embed.patch_size != (PATCH, PATCH):
        side = net.patch_embed.patch_size[0]
        raise ValueError(
            f"MODEL.BACKBONE.CONV_BODY: timm's {name} has patches of {side} pixels, but -SFP "
            f"needs patches of {PATCH}: use a patch{PATCH} model"
        )
