"""timm's plain vision transformers as backbones for large images, as in ViTDet.

Li et al., Exploring Plain Vision Transformer Backbones for Object Detection,
https://arxiv.org/abs/2203.16527. Shapes: B images, H x W patches of 16 x 16 pixels, P prefix tokens
(class and register tokens), C channels, h heads of D channels, n windows of S x S patches per
image.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from detlite.modeling.layers.asymmetric_padding import pad_to_multiple

from .activation_checkpointing import checkpointed
from .timm_backbone import create
from .windows import from_windows, global_blocks, to_windows, window_counts

PATCH = 16


@dataclass(frozen=True)
class ViTOptions:
    """Options of a plain transformer as a detection backbone.

    Attributes:
        window: side in patches of the windows that most blocks attend within; 0: no windows.
        global_blocks: the number of blocks that attend to whole maps, see `windows.global_blocks`.
        drop_path: probability of skipping the last block for an image in training; proportionally
            less for earlier blocks (https://arxiv.org/abs/1603.09382).
        freeze_at: the number of leading parts that are not trained: the embedding, then quarters
            of the blocks.
        checkpoint_activations: save only the inputs of blocks in training, see `checkpointed`.
    """

    window: int = 0
    global_blocks: int = 4
    drop_path: float = 0.0
    freeze_at: int = 0
    checkpoint_activations: bool = False

    @property
    def two_windows(self) -> int:
        """Smallest side in pixels of an image that has two windows side by side, after padding."""
        return 2 * PATCH * (self.window // 2 + 1) if self.window else 0


class TimmViT(nn.Module):
    """A plain transformer of timm (vit, deit, dinov3, eva02) without its head; returns one map.

    Without windows, the map is the patches of timm's `forward_features`. With windows, each window
    gets a copy of the prefix tokens, and their new value is the mean over windows. The state dict
    has timm's names, prefixed by `net.`.
    """

    def __init__(self, name: str, options: ViTOptions) -> None:
        super().__init__()
        net = create(name, options.drop_path)
        _check_plain(net, name)
        net.prune_intermediate_layers(1, prune_norm=False)  # removes the head
        _use_device_rope(net)
        self.net = net
        self.channels = net.embed_dim
        self.options = options
        self.two_windows = options.two_windows
        global_ids = global_blocks(len(net.blocks), options.global_blocks)
        self.windows = [0 if n in global_ids else options.window for n in range(len(net.blocks))]
        freeze_layers(self.layers(), options.freeze_at)
        for block in net.blocks:
            if not any(parameter.requires_grad for parameter in block.parameters()):
                block.drop_path1 = block.drop_path2 = nn.Identity()

    def layers(self) -> list[list[nn.Parameter]]:
        """Return the parameters of the embedding and of each block, the norm with the last one."""
        layers: list[list[nn.Parameter]] = [[] for _ in range(1 + len(self.net.blocks))]
        for name, parameter in self.net.named_parameters():
            part, number = [*name.split("."), ""][:2]
            place = int(number) + 1 if part == "blocks" else -1 if part == "norm" else 0
            layers[place].append(parameter)
        return layers

    def forward(self, x: Tensor) -> list[Tensor]:
        """Compute a map [B, C, H, W] from pixels [B, 3, H', W'].

        Sides are padded to multiples of two patches, so that H and W are even.
        """
        x = pad_to_multiple(x, 2 * PATCH)
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
            if self.options.checkpoint_activations:
                tokens = checkpointed(block, tokens, step, self.options.drop_path > 0)
            else:
                tokens = step(tokens)
        tokens = self.net.norm(tokens)[:, self.net.num_prefix_tokens :]
        maps = tokens.unflatten(1, (height, width)).permute(0, 3, 1, 2)
        return [maps.contiguous(memory_format=torch.channels_last)]

    def _embed(
        self, x: Tensor, height: int, width: int
    ) -> tuple[Tensor, Sequence[tuple[Tensor | None, Tensor | None]]]:
        """Embed patches: return tokens [B, P + H W, C], and the rotary embeddings of each block.

        These are [..., H W, 2 D] for whole maps and [B n, ..., S S, 2 D] for windows, or None.
        """
        depth = len(self.net.blocks)
        embedded = self.net._pos_embed(self.net.patch_embed(x))
        tokens, ropes = embedded if isinstance(embedded, tuple) else (embedded, None)
        tokens = self.net.norm_pre(tokens)
        if ropes is None:
            return tokens, [(None, None)] * depth
        mixed = getattr(self.net, "rope_mixed", False)  # each block has its own
        pairs = [
            (rope, self._rope_in_windows(rope, x.shape[0], height, width))
            for rope in (ropes if mixed else [ropes])
        ]
        return tokens, pairs if mixed else pairs * depth

    def _rope_in_windows(self, rope: Tensor, batch: int, height: int, width: int) -> Tensor | None:
        """Split rotary embeddings [H W, 2 D] or [h, H W, 2 D] into [B n, 1 or h, S S, 2 D]."""
        side = self.options.window
        if not side:
            return None
        heads = 1 if rope.dim() == 2 else rope.shape[0]
        cut = to_windows(rope.view(heads, height, width, rope.shape[-1]), side).flatten(1, 2)
        cut = cut.unflatten(0, (heads, -1)).transpose(0, 1)
        return cut[None].expand(batch, -1, -1, -1, -1).flatten(0, 1)


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


def freeze_layers(layers: Sequence[Sequence[nn.Parameter]], count: int) -> None:
    """Freeze the first `count` parts: the embedding (`layers[0]`), then quarters of the blocks."""
    blocks = len(layers) - 1
    for layer in layers[: 1 + blocks * (count - 1) // 4 if count else 0]:
        for parameter in layer:
            parameter.requires_grad_(False)


def _run(block: Any, attend: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
    """Run a ViT or EVA block of timm with another attention function."""
    added = attend(block.norm1(tokens))
    added = block.ls1(added) if hasattr(block, "ls1") else _scale(added, block.gamma_1)
    tokens = tokens + block.drop_path1(added)
    added = block.mlp(block.norm2(tokens))
    added = block.ls2(added) if hasattr(block, "ls2") else _scale(added, block.gamma_2)
    return tokens + block.drop_path2(added)


def _scale(x: Tensor, gamma: Tensor | None) -> Tensor:
    return x if gamma is None else x * gamma


def _attend(attention: nn.Module, tokens: Tensor, rope: Tensor | None) -> Tensor:
    return attention(tokens) if rope is None else attention(tokens, rope=rope)


def _in_windows(
    attend: Callable[[Tensor], Tensor], prefix: int, height: int, width: int, side: int,
    tokens: Tensor,
) -> Tensor:  # fmt: skip
    """Attend within windows, each with a copy of the prefix tokens: [B, P + H W, C]."""
    before, patches = tokens[:, :prefix], tokens[:, prefix:]
    rows, columns = window_counts(height, width, side)
    cut = to_windows(patches.unflatten(1, (height, width)), side).flatten(1, 2)  # [B n, S S, C]
    copies = before[:, None].expand(-1, rows * columns, -1, -1).flatten(0, 1)
    attended = attend(torch.cat([copies, cut], dim=1))
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
