"""timm's plain vision transformers as bodies that take large images, in the way of ViTDet.

Li et al., Exploring Plain Vision Transformer Backbones for Object Detection,
https://arxiv.org/abs/2203.16527. Shapes: B images, H x W patches of 16 x 16 pixels, P tokens before
them (of the class, registers), C channels, h heads of D channels, windows of S x S patches, n of
them in an image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from detlite.modeling.layers.asymmetric_padding import pad_to

from .activation_checkpointing import checkpointed
from .timm_backbone import create
from .windows import from_windows, global_blocks, to_windows, window_counts

PATCH = 16


@dataclass(frozen=True)
class ViTOptions:
    """What detection makes of a plain transformer.

    Attributes:
        window: side of the windows that most blocks attend within, in patches; 0: none do.
        global_blocks: how many blocks attend to the whole map, see `windows.global_blocks`.
        drop_path: probability that what the last block adds is left out of an image in training;
            before it, proportionally less (https://arxiv.org/abs/1603.09382).
        freeze_at: so many leading parts are not trained: the embedding, then quarters of the
            blocks.
        checkpoints: training keeps the inputs of blocks alone, the rest it computes again.
    """

    window: int = 0
    global_blocks: int = 4
    drop_path: float = 0.0
    freeze_at: int = 0
    checkpoints: bool = False

    @property
    def two_windows(self) -> int:
        """The least side of an image with two windows beside each other, padded, in pixels."""
        return 2 * PATCH * (self.window // 2 + 1) if self.window else 0


class TimmViT(nn.Module):
    """A plain transformer of timm (vit, deit, dinov3, eva02) without its head; gives one map.

    Without windows that is what timm's `forward_features` gives of the patches. Each window has a
    copy of the tokens before them, and the mean of what attention makes of the copies is added.
    Entries of the state dict are called as in timm, behind `net.`.

    Args:
        name: of the model, as `timm.create_model` takes it.
        options: what detection makes of it.

    Attributes:
        channels: of the map.
        two_windows: the least side of an image that has two windows beside each other, in pixels.

    Raises:
        ValueError: timm is not installed or does not know the model, or it is no plain transformer
            with patches of 16 x 16 pixels.
    """

    def __init__(self, name: str, options: ViTOptions) -> None:
        super().__init__()
        net = create(name, drop_path_rate=options.drop_path)
        _check_plain(net, name)
        net.prune_intermediate_layers(1, prune_norm=False)  # leaves the head out
        _rotate_on_device(net)
        self.net = net
        self.channels = net.embed_dim
        self.options = options
        self.two_windows = options.two_windows
        whole = global_blocks(len(net.blocks), options.global_blocks)
        self.windows = [0 if n in whole else options.window for n in range(len(net.blocks))]
        freeze(self.layers(), options.freeze_at)
        for block in net.blocks:
            if not any(parameter.requires_grad for parameter in block.parameters()):
                block.drop_path1 = block.drop_path2 = nn.Identity()

    def layers(self) -> list[list[nn.Parameter]]:
        """The parameters of the embedding and of each block; the last one's has the norm."""
        layers: list[list[nn.Parameter]] = [[] for _ in range(1 + len(self.net.blocks))]
        for name, parameter in self.net.named_parameters():
            part, number = [*name.split("."), ""][:2]
            place = int(number) + 1 if part == "blocks" else -1 if part == "norm" else 0
            layers[place].append(parameter)
        return layers

    def forward(self, x: Tensor) -> list[Tensor]:
        """Pixels [B, 3, H', W'] -> a map [B, C, H, W]: sides are padded to multiples of two
        patches, so that H and W are even."""
        x = pad_to(x, 2 * PATCH)
        height, width = x.shape[2] // PATCH, x.shape[3] // PATCH
        tokens, ropes = self._embed(x, height, width)
        for block, window, (rope, rope_in_windows) in zip(
            self.net.blocks, self.windows, ropes, strict=True
        ):
            attend = partial(_attend, block.attn, rope=rope)
            if window:
                attend = partial(_attend, block.attn, rope=rope_in_windows)
                size = (height, width, window)
                attend = partial(_in_windows, attend, self.net.num_prefix_tokens, *size)
            step = partial(_run, block, attend)
            if self.options.checkpoints:
                tokens = checkpointed(block, tokens, step, self.options.drop_path > 0)
            else:
                tokens = step(tokens)
        tokens = self.net.norm(tokens)[:, self.net.num_prefix_tokens :]
        found = tokens.unflatten(1, (height, width)).permute(0, 3, 1, 2)
        return [found.contiguous(memory_format=torch.channels_last)]

    def _embed(
        self, x: Tensor, height: int, width: int
    ) -> tuple[Tensor, Sequence[tuple[Tensor | None, Tensor | None]]]:
        """The tokens [B, P + H W, C]; for each block, what rotates queries and keys by position:
        [..., H W, 2 D], and in windows [B n, ..., S S, 2 D]."""
        depth = len(self.net.blocks)
        found = self.net._pos_embed(self.net.patch_embed(x))
        tokens, ropes = found if isinstance(found, tuple) else (found, None)
        tokens = self.net.norm_pre(tokens)
        if ropes is None:
            return tokens, [(None, None)] * depth
        mixed = getattr(self.net, "rope_mixed", False)  # blocks have their own
        pairs = [
            (rope, self._rope_in_windows(rope, x.shape[0], height, width))
            for rope in (ropes if mixed else [ropes])
        ]
        return tokens, pairs if mixed else pairs * depth

    def _rope_in_windows(self, rope: Tensor, batch: int, height: int, width: int) -> Tensor | None:
        """Rotations [H W, 2 D] or [h, H W, 2 D] -> [B n, 1 or h, S S, 2 D]."""
        side = self.options.window
        if not side:
            return None
        heads = 1 if rope.dim() == 2 else rope.shape[0]
        cut = to_windows(rope.view(heads, height, width, rope.shape[-1]), side).flatten(1, 2)
        cut = cut.unflatten(0, (heads, -1)).transpose(0, 1)
        return cut[None].expand(batch, -1, -1, -1, -1).flatten(0, 1)


class _DinoRope(nn.Module):
    """DINOv3's rotations, made where they are used: timm makes them on the CPU, and waits.

    Args:
        rope: timm's, whose frequencies and order these are.
    """

    def __init__(self, rope: Any) -> None:
        super().__init__()
        self.rope = rope

    def get_embed(self, shape: Sequence[int]) -> Tensor:
        """For patches H x W, whose centres lie in -1..1: [H W, 2 D]."""
        axes = [
            (torch.arange(side, device=self.rope.periods.device) + 0.5) / side * 2 - 1
            for side in shape
        ]
        centres = torch.stack(torch.meshgrid(axes, indexing="ij"), dim=-1).flatten(0, 1)
        return torch.cat(self.rope._get_pos_embed_from_coords(centres), dim=-1)


def _rotate_on_device(net: Any) -> None:
    from timm.layers import RotaryEmbeddingDinoV3

    rope = getattr(net, "rope", None)
    if isinstance(rope, RotaryEmbeddingDinoV3) and rope.normalize_coords == "separate":
        net.rope = _DinoRope(rope)


def freeze(layers: Sequence[Sequence[nn.Parameter]], count: int) -> None:
    """Freezes so many parts: the first of `layers`, the embedding, then quarters of the others."""
    blocks = len(layers) - 1
    for layer in layers[: 1 + blocks * (count - 1) // 4 if count else 0]:
        for parameter in layer:
            parameter.requires_grad_(False)


def _run(block: Any, attend: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
    """A block of timm's, with another way to attend: ViT's and EVA's scale what they add apart."""
    added = attend(block.norm1(tokens))
    added = block.ls1(added) if hasattr(block, "ls1") else _times(added, block.gamma_1)
    tokens = tokens + block.drop_path1(added)
    added = block.mlp(block.norm2(tokens))
    added = block.ls2(added) if hasattr(block, "ls2") else _times(added, block.gamma_2)
    return tokens + block.drop_path2(added)


def _times(x: Tensor, gamma: Tensor | None) -> Tensor:
    return x if gamma is None else x * gamma


def _attend(attention: nn.Module, tokens: Tensor, rope: Tensor | None) -> Tensor:
    return attention(tokens) if rope is None else attention(tokens, rope=rope)


def _in_windows(
    attend: Callable[[Tensor], Tensor], prefix: int, height: int, width: int, side: int,
    tokens: Tensor,
) -> Tensor:  # fmt: skip
    """Attends within windows, of which each has the tokens before the patches: [B, P + H W, C]."""
    before, patches = tokens[:, :prefix], tokens[:, prefix:]
    rows, columns = window_counts(height, width, side)
    cut = to_windows(patches.unflatten(1, (height, width)), side).flatten(1, 2)  # (B n, S S, C)
    copies = before[:, None].expand(-1, rows * columns, -1, -1).flatten(0, 1)
    found = attend(torch.cat([copies, cut], dim=1))
    before = found[:, :prefix].unflatten(0, (tokens.shape[0], rows * columns)).mean(dim=1)
    cut = found[:, prefix:].unflatten(1, (side, side))
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
            f"MODEL.BACKBONE.CONV_BODY: -SFP makes its levels from a plain vision transformer's "
            f"one map, and timm's {name} is none (vit_*, deit*, eva02_* and *_dinov3 are): use "
            "-FPN, -C4 or -C5"
        )
    if net.patch_embed.patch_size != (PATCH, PATCH):
        side = net.patch_embed.patch_size[0]
        raise ValueError(
            f"MODEL.BACKBONE.CONV_BODY: timm's {name} has patches of {side} pixels, but -SFP makes "
            f"levels of strides 4, 8, 16 and 32 from patches of {PATCH}: use a model of patch16"
        )
