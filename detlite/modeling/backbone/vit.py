"""Plain vision transformer of ViTDet, with learned relative positions.

Li et al., Exploring Plain Vision Transformer Backbones for Object Detection,
https://arxiv.org/abs/2203.16527. Shapes: B images or windows, H x W patches of 16 x 16 pixels, C
channels, h heads of D channels.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from yacs.config import CfgNode

from .activation_checkpointing import checkpoint_activations
from .build import BODIES
from .windows import from_windows, global_blocks, pad_to_multiple, to_windows

PATCH = 16  # pixels

# Channels, blocks and heads (https://arxiv.org/abs/2010.11929, https://arxiv.org/abs/2012.12877).
SIZES = {
    "T": (192, 12, 3),
    "S": (384, 12, 6),
    "B": (768, 12, 12),
    "L": (1024, 24, 16),
    "H": (1280, 32, 16),
}
_PRETRAINED_SIDE = 14  # patches per side of a classifier's images of 224 x 224 pixels


@dataclass(frozen=True)
class ViTOptions:
    """Options of a plain transformer as a detection backbone."""

    window: int = 0  # side in patches of the windows that most blocks attend within; 0: no windows
    global_blocks: int = 4  # number of blocks that attend to whole maps, see `global_blocks`
    # Probability of skipping the last block for an image in training; proportionally less for
    # earlier blocks (https://arxiv.org/abs/1603.09382).
    drop_path: float = 0.0
    freeze_at: int = 0  # number of leading parts that are not trained, see `freeze_layers`
    checkpoint_activations: bool = False  # see `checkpoint_activations`

    @property
    def min_image_side(self) -> int:
        """Smallest side in pixels of an image that has two windows side by side, after padding."""
        return 2 * PATCH * (self.window // 2 + 1) if self.window else 0

    def windows(self, depth: int) -> list[int]:
        """Return the side of the windows of each block; 0 for blocks that attend to whole maps."""
        whole = global_blocks(depth, self.global_blocks)
        return [0 if number in whole else self.window for number in range(depth)]


def freeze_layers(layers: Sequence[Sequence[nn.Parameter]], count: int) -> None:
    """Freeze the first `count` parts: the embedding (`layers[0]`), then quarters of the blocks."""
    blocks = len(layers) - 1
    for layer in layers[: 1 + blocks * (count - 1) // 4 if count else 0]:
        for parameter in layer:
            parameter.requires_grad_(False)


class Attention(nn.Module):
    """Self-attention between all patches, with learned relative positions.

    The positions belong to maps of `side` patches per side and are interpolated for other sizes.
    """

    def __init__(self, channels: int, heads: int, side: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(channels, 3 * channels)
        self.proj = nn.Linear(channels, channels)
        self.rel_pos_h = nn.Parameter(torch.zeros(2 * side - 1, channels // heads))
        self.rel_pos_w = nn.Parameter(torch.zeros(2 * side - 1, channels // heads))

    def forward(self, x: Tensor) -> Tensor:
        """Transform [B, H, W, C]."""
        height, width = x.shape[1], x.shape[2]
        qkv = self.qkv(x).flatten(1, 2).unflatten(2, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # [B, h, H W, D]
        # Decomposed (https://arxiv.org/abs/2112.01526): one term for the rows between a query and a
        # key, and one for the columns.
        grid = q.unflatten(2, (height, width))
        rows = _position_logits(grid, _relative_positions(self.rel_pos_h, height))
        columns = _position_logits(grid.transpose(2, 3), _relative_positions(self.rel_pos_w, width))
        bias = rows[..., :, None] + _contiguous(columns.transpose(2, 3))[..., None, :]
        bias = bias.flatten(4, 5).flatten(2, 3)  # [B, h, H W, H W]
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
        return self.proj(x.transpose(1, 2).flatten(2)).unflatten(1, (height, width))


def _relative_positions(positions: Tensor, side: int) -> Tensor:
    """Look up positions [L, D] for each pair of query and key along an axis: [side, side, D]."""
    # Interpolate always: a condition would fix the side of exported graphs.
    resized = F.interpolate(positions.T[None], size=2 * side - 1, mode="linear")[0].T
    index = torch.arange(side, device=positions.device)
    return resized[index[:, None] - index + (side - 1)]


def _position_logits(queries: Tensor, positions: Tensor) -> Tensor:
    """Multiply queries [B, h, N, M, D] by positions [N, K, D] of their axis: [B, h, N, M, K].

    einsum computes the same, but its exported graphs do not accept a batch of one image.
    """
    batch, heads, _, other_side, _ = queries.shape
    folded = _contiguous(queries.permute(2, 0, 1, 3, 4)).flatten(1, 3)
    products = torch.bmm(folded, positions.transpose(1, 2).to(folded.dtype))
    return _contiguous(products.unflatten(1, (batch, heads, other_side)).permute(1, 2, 0, 3, 4))


def _contiguous(x: Tensor) -> Tensor:
    """Copy to contiguous memory, so that an exported graph does not depend on contiguity."""
    return x.clone(memory_format=torch.contiguous_format)


class Block(nn.Module):
    """Attention and an MLP, both with a residual connection.

    It attends within windows of `side` patches per side, or without `windows` to whole maps (see
    `Attention`). `drop_path` is the probability of skipping a branch for an image in training.
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
        fc1, fc2 = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.mlp = nn.Sequential(OrderedDict(fc1=fc1, act=nn.GELU(), fc2=fc2))

    def forward(self, x: Tensor) -> Tensor:
        """Transform [B, H, W, C]."""
        added = self.norm1(x)
        if self.window:
            added = self.attn(to_windows(added, self.window))
            added = from_windows(added, *x.shape[:3])
        else:
            added = self.attn(added)
        x = x + self._drop_path(added)
        return x + self._drop_path(self.mlp(self.norm2(x)))

    def _drop_path(self, added: Tensor) -> Tensor:
        if not self.training or not self.drop_path:
            return added
        keep = 1 - self.drop_path
        return added * (torch.rand_like(added[:, :1, :1, :1]) < keep) / keep


class ViT(nn.Module):
    """A plain vision transformer that returns the map of its last block.

    Its global blocks learn the relative positions of images with the side `image_size` in pixels.
    """

    def __init__(
        self, channels: int, depth: int, heads: int, image_size: int, options: ViTOptions
    ) -> None:
        super().__init__()
        self.channels, self.strides = [channels], (PATCH,)
        self.options = options
        self.min_image_side = options.min_image_side
        projection = nn.Conv2d(3, channels, PATCH, stride=PATCH)
        self.patch_embed = nn.Sequential(OrderedDict(proj=projection))
        # The first position belongs to the class token, which detection does not use.
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + _PRETRAINED_SIDE**2, channels))
        blocks = []
        for number, window in enumerate(options.windows(depth)):
            side, drop_path = window or image_size // PATCH, options.drop_path * number
            blocks.append(Block(channels, heads, side, window > 0, drop_path / max(depth - 1, 1)))
        self.blocks = nn.ModuleList(blocks)
        nn.init.normal_(self.pos_embed, std=0.02)
        for layer in self.blocks.modules():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        freeze_layers(self.layers(), options.freeze_at)
        for block in blocks:
            if not any(parameter.requires_grad for parameter in block.parameters()):
                block.drop_path = 0.0

    def layers(self) -> list[list[nn.Parameter]]:
        """Return the parameters of the embedding and of each block."""
        embedding = [*self.patch_embed.parameters(), self.pos_embed]
        return [embedding, *(list(block.parameters()) for block in self.blocks)]

    def forward(self, x: Tensor) -> list[Tensor]:
        """Compute a map [B, C, H, W] from pixels [B, 3, H', W'].

        Sides are padded to multiples of two patches, so that H and W are even.
        """
        x = self.patch_embed(pad_to_multiple(x, 2 * PATCH))
        side = _PRETRAINED_SIDE
        positions = self.pos_embed[:, 1:].unflatten(1, (side, side)).permute(0, 3, 1, 2)
        size = [x.shape[2], x.shape[3]]
        x = x + F.interpolate(positions, size=size, mode="bicubic").to(x.dtype)
        x = x.permute(0, 2, 3, 1)
        for block in self.blocks:
            if self.options.checkpoint_activations:
                x = checkpoint_activations(block, x, random=True)
            else:
                x = block(x)
        return [x.permute(0, 3, 1, 2)]


def build_vit_options(cfg: CfgNode) -> ViTOptions:
    """Build the options of MODEL.VIT."""
    return ViTOptions(
        window=cfg.MODEL.VIT.WINDOW,
        global_blocks=cfg.MODEL.VIT.GLOBAL_BLOCKS,
        drop_path=cfg.MODEL.VIT.DROP_PATH,
        freeze_at=cfg.MODEL.BACKBONE.FREEZE_CONV_BODY_AT,
        checkpoint_activations=cfg.MODEL.BACKBONE.CHECKPOINT_ACTIVATIONS,
    )


def _build_vit(cfg: CfgNode, strides: Sequence[int]) -> ViT:
    name = cfg.MODEL.BACKBONE.CONV_BODY
    if tuple(strides) != (PATCH,):
        raise ValueError(
            f"MODEL.BACKBONE.CONV_BODY is {name}, but a ViT has only a map of stride {PATCH}: use "
            "the ending -SFP"
        )
    size = SIZES[name.split("-")[1]]
    return ViT(*size, cfg.MODEL.VIT.IMAGE_SIZE, build_vit_options(cfg))


BODIES.register(*(f"ViT-{size}" for size in SIZES))(_build_vit)
