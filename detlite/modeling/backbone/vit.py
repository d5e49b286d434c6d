"""The plain vision transformer of ViTDet, with learned relative positions.

Li et al., Exploring Plain Vision Transformer Backbones for Object Detection,
https://arxiv.org/abs/2203.16527. Shapes: B images or windows, H x W patches of 16 x 16 pixels, C
channels, h heads of D channels.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from detlite.modeling.layers.asymmetric_padding import pad_to

from .activation_checkpointing import checkpointed
from .timm_vit import PATCH, ViTOptions, freeze
from .windows import from_windows, global_blocks, to_windows

# Channels, blocks and heads (https://arxiv.org/abs/2010.11929, https://arxiv.org/abs/2012.12877).
SIZES = {
    "T": (192, 12, 3),
    "S": (384, 12, 6),
    "B": (768, 12, 12),
    "L": (1024, 24, 16),
    "H": (1280, 32, 16),
}
_PRETRAINED = 14  # patches on a side of the images of a classifier, 224 x 224 pixels


class Attention(nn.Module):
    """Self-attention of all patches, which knows how far they are apart.

    Args:
        channels, heads: C and h.
        side: relative positions are learned for maps of so many patches on a side, and interpolated
            for others.
    """

    def __init__(self, channels: int, heads: int, side: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(channels, 3 * channels)
        self.proj = nn.Linear(channels, channels)
        self.rel_pos_h = nn.Parameter(torch.zeros(2 * side - 1, channels // heads))
        self.rel_pos_w = nn.Parameter(torch.zeros(2 * side - 1, channels // heads))

    def forward(self, x: Tensor) -> Tensor:
        """[B, H, W, C] -> the same shape."""
        height, width = x.shape[1], x.shape[2]
        qkv = self.qkv(x).flatten(1, 2).unflatten(2, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (B, h, H W, D)
        # Decomposed (https://arxiv.org/abs/2112.01526): what a query makes of the rows between it
        # and a key, and of the columns.
        grid = q.unflatten(2, (height, width))
        rows = _products(grid, _between(self.rel_pos_h, height))
        columns = _products(grid.transpose(2, 3), _between(self.rel_pos_w, width)).transpose(2, 3)
        bias = rows[..., :, None] + _dense(columns)[..., None, :]
        bias = bias.flatten(4, 5).flatten(2, 3)  # (B, h, H W, H W)
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
        return self.proj(x.transpose(1, 2).flatten(2)).unflatten(1, (height, width))


def _between(positions: Tensor, side: int) -> Tensor:
    """Relative positions [L, D] -> from each query of an axis to each key [side, side, D]."""
    # Also where nothing is to be interpolated: a condition would fix the side of exported graphs.
    line = F.interpolate(positions.T[None], size=2 * side - 1, mode="linear")[0].T
    at = torch.arange(side, device=positions.device)
    return line[at[:, None] - at + (side - 1)]


def _products(queries: Tensor, positions: Tensor) -> Tensor:
    """Queries [B, h, N, M, D] times positions of their axis [N, K, D] -> [B, h, N, M, K].

    einsum does the same, but exports graphs for more than one image only.
    """
    batch, heads, _, others, _ = queries.shape
    folded = _dense(queries.permute(2, 0, 1, 3, 4)).flatten(1, 3)
    found = torch.bmm(folded, positions.transpose(1, 2).to(folded.dtype))
    return _dense(found.unflatten(1, (batch, heads, others)).permute(1, 2, 0, 3, 4))


def _dense(x: Tensor) -> Tensor:
    """A contiguous copy: whether `x` is contiguous would be a condition of an exported graph."""
    return x.clone(memory_format=torch.contiguous_format)


class Block(nn.Module):
    """Attention and two layers at each patch, both added to what they are given.

    Args:
        channels, heads: C and h.
        side: of the windows that it attends within, or of the maps, see `Attention`.
        windows: whether it attends within windows.
        drop_path: probability that what it adds is left out of an image in training.
    """

    def __init__(
        self, channels: int, heads: int, side: int, windows: bool, drop_path: float
    ) -> None:
        super().__init__()
        self.window = side if windows else 0
        self.drop_path = drop_path
        self.norm1 = nn.LayerNorm(channels, eps=1e-6)
        self.attn = Attention(channels, heads, side)
        self.norm2 = nn.LayerNorm(channels, eps=1e-6)
        self.mlp = nn.Sequential()
        self.mlp.add_module("fc1", nn.Linear(channels, 4 * channels))
        self.mlp.add_module("act", nn.GELU())
        self.mlp.add_module("fc2", nn.Linear(4 * channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        """[B, H, W, C] -> the same shape."""
        added = self.norm1(x)
        if self.window:
            added = self.attn(to_windows(added, self.window))
            added = from_windows(added, x.shape[0], x.shape[1], x.shape[2])
        else:
            added = self.attn(added)
        x = x + self._kept(added)
        return x + self._kept(self.mlp(self.norm2(x)))

    def _kept(self, added: Tensor) -> Tensor:
        if not self.training or not self.drop_path:
            return added
        keep = 1 - self.drop_path
        return added * (torch.rand_like(added[:, :1, :1, :1]) < keep) / keep


class ViT(nn.Module):
    """A plain vision transformer; gives the map of its last block.

    Args:
        channels, depth, heads: see SIZES.
        image_size: side of the images, in pixels, whose relative positions the global blocks learn.
        options: windows, which blocks are global, and how it is trained.

    Attributes:
        channels: of the map.
        two_windows: the least side of an image that has two windows beside each other, in pixels.
    """

    def __init__(
        self, channels: int, depth: int, heads: int, image_size: int, options: ViTOptions
    ) -> None:
        super().__init__()
        self.channels = channels
        self.options = options
        self.two_windows = options.two_windows
        self.patch_embed = nn.Sequential()
        self.patch_embed.add_module("proj", nn.Conv2d(3, channels, PATCH, stride=PATCH))
        # The first is the class token's, which is not there.
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + _PRETRAINED**2, channels))
        whole = global_blocks(depth, options.global_blocks)
        blocks = []
        for number in range(depth):
            windows = options.window > 0 and number not in whole
            side = options.window if windows else image_size // PATCH
            drop_path = options.drop_path * number / max(depth - 1, 1)
            blocks.append(Block(channels, heads, side, windows, drop_path))
        self.blocks = nn.ModuleList(blocks)
        nn.init.normal_(self.pos_embed, std=0.02)
        for layer in self.blocks.modules():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        freeze(self.layers(), options.freeze_at)
        for block in blocks:
            if not any(parameter.requires_grad for parameter in block.parameters()):
                block.drop_path = 0.0

    def layers(self) -> list[list[nn.Parameter]]:
        """The parameters of the embedding and of each block."""
        embedding = [*self.patch_embed.parameters(), self.pos_embed]
        return [embedding, *(list(block.parameters()) for block in self.blocks)]

    def forward(self, x: Tensor) -> list[Tensor]:
        """Pixels [B, 3, H', W'] -> a map [B, C, H, W]: sides are padded to multiples of two
        patches, so that H and W are even."""
        x = self.patch_embed(pad_to(x, 2 * PATCH))
        side = _PRETRAINED
        positions = self.pos_embed[:, 1:].unflatten(1, (side, side)).permute(0, 3, 1, 2)
        size = [x.shape[2], x.shape[3]]
        x = x + F.interpolate(positions, size=size, mode="bicubic").to(x.dtype)
        x = x.permute(0, 2, 3, 1)
        for block in self.blocks:
            run = partial(checkpointed, block, random=True) if self.options.checkpoints else block
            x = run(x)
        return [x.permute(0, 3, 1, 2)]
