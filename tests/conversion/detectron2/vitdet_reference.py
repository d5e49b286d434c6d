"""Independent implementation of detectron2's ViTDet, and narrow state dicts with its names.

Written from the paper (https://arxiv.org/abs/2203.16527), without code of detlite. Shapes: B images
or windows, H x W patches of 16 x 16 pixels, C channels.
"""

import math
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.conversion.detectron2.reference_model import Reference
from tests.conversion.synthetic_state_dicts import (
    CLASSES,
    DIM,
    PYRAMID,
    StateDict,
    StateDictBuilder,
)

CHANNELS, DEPTH, HEADS, WINDOW = 16, 4, 2, 3


@dataclass(frozen=True)
class ViTDetReference(Reference):
    """A ViTDet that pads images to squares of `side` pixels."""

    side: int = 128

    def _batch(self, images: list[Tensor]) -> tuple[Tensor, list[tuple[int, int]]]:
        mean = torch.tensor([123.675, 116.28, 103.53]).view(3, 1, 1)
        std = torch.tensor([58.395, 57.12, 57.375]).view(3, 1, 1)
        batch = torch.zeros(len(images), 3, self.side, self.side)
        for padded, image in zip(batch, images, strict=True):
            padded[:, : image.shape[1], : image.shape[2]] = (image - mean) / std
        return batch, [(image.shape[1], image.shape[2]) for image in images]

    def _norm(self, x: Tensor, name: str) -> Tensor:
        """Apply layer norm over channels, if there is one."""
        return self._normed(x, f"{name}.norm") if f"{name}.norm.weight" in self.state else x

    def _normed(self, x: Tensor, name: str, dim: int = 1) -> Tensor:
        x = x.movedim(dim, -1)
        weight, bias = self.state[f"{name}.weight"], self.state[f"{name}.bias"]
        return F.layer_norm(x, weight.shape, weight, bias, 1e-6).movedim(-1, dim)

    def _backbone(self, x: Tensor) -> list[Tensor]:
        name = "backbone.net.patch_embed.proj"
        x = F.conv2d(x, self.state[f"{name}.weight"], self.state[f"{name}.bias"], 16)
        positions = self.state["backbone.net.pos_embed"][0, 1:].T
        side = math.isqrt(positions.shape[1])
        positions = positions.view(1, -1, side, side)
        x = x + F.interpolate(positions, size=x.shape[2:], mode="bicubic", align_corners=False)
        x = x.permute(0, 2, 3, 1)
        for number in range(DEPTH):
            x = self._block(x, f"backbone.net.blocks.{number}", number in (1, 3))
        return [x.permute(0, 3, 1, 2)]

    def _block(self, x: Tensor, name: str, is_global: bool) -> Tensor:
        normed = self._normed(x, f"{name}.norm1", -1)
        if is_global:
            update = self._attend(normed, f"{name}.attn")
        else:  # in windows, with zero padding
            height, width = (-(-side // WINDOW) * WINDOW for side in x.shape[1:3])
            padded = x.new_zeros(len(x), height, width, CHANNELS)
            padded[:, : x.shape[1], : x.shape[2]] = normed
            for top, left in product(range(0, height, WINDOW), range(0, width, WINDOW)):
                window = padded[:, top : top + WINDOW, left : left + WINDOW]
                window.copy_(self._attend(window, f"{name}.attn"))
            update = padded[:, : x.shape[1], : x.shape[2]]
        x = x + update
        hidden = self._linear(self._normed(x, f"{name}.norm2", -1), f"{name}.mlp.fc1")
        return x + self._linear(F.gelu(hidden), f"{name}.mlp.fc2")

    def _attend(self, x: Tensor, name: str) -> Tensor:
        height, width = x.shape[1:3]
        count = height * width
        qkv = self._linear(x, f"{name}.qkv").view(len(x), count, 3, HEADS, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # [B, h, H W, D]
        patch = torch.arange(count)
        down = patch[:, None] // width - patch // width + height - 1
        right = patch[:, None] % width - patch % width + width - 1
        logits = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
        for axis, distance in (("h", down), ("w", right)):
            table = self.state[f"{name}.rel_pos_{axis}"]
            assert len(table) == 2 * (height if axis == "h" else width) - 1
            logits = logits + (q[:, :, :, None] * table[distance]).sum(-1)
        output = (logits.softmax(-1) @ v).transpose(1, 2).reshape(x.shape)
        return self._linear(output, f"{name}.proj")

    def _pyramid(self, maps: list[Tensor], finest: int) -> list[Tensor]:
        def upsample(x: Tensor, name: str) -> Tensor:
            weight, bias = self.state[f"{name}.weight"], self.state[f"{name}.bias"]
            return F.conv_transpose2d(x, weight, bias, stride=2)

        (x,) = maps
        p2 = self._normed(upsample(x, "backbone.simfp_2.0"), "backbone.simfp_2.1")
        p2 = upsample(F.gelu(p2), "backbone.simfp_2.3")
        scaled = [p2, upsample(x, "backbone.simfp_3.0"), x, F.max_pool2d(x, 2)]
        levels = []
        for level, first, x in zip(range(2, 6), (4, 1, 0, 1), scaled, strict=True):
            x = self._conv(x, f"backbone.simfp_{level}.{first}")
            levels.append(self._conv(x, f"backbone.simfp_{level}.{first + 1}"))
        return [*levels, levels[-1][:, :, ::2, ::2]]


def vitdet(cascade: bool = False, side: int = 128) -> StateDict:
    """Make a ViTDet of four narrow blocks; the second and the fourth are global."""
    out = StateDictBuilder()

    def normed(name: str, *shape: int) -> None:
        out.layer(name, *shape, bias=False)
        norm(f"{name}.norm", shape[0])

    def norm(name: str, channels: int) -> None:
        out.state[f"{name}.weight"] = torch.rand(channels) + 0.5
        out.state[f"{name}.bias"] = torch.randn(channels)

    out.layer("backbone.net.patch_embed.proj", CHANNELS, 3, 16, 16)
    out.state["backbone.net.pos_embed"] = torch.randn(1, 1 + 14**2, CHANNELS)
    for number in range(DEPTH):
        block = f"backbone.net.blocks.{number}"
        length = 2 * (side // 16 if number in (1, 3) else WINDOW) - 1
        norm(f"{block}.norm1", CHANNELS)
        norm(f"{block}.norm2", CHANNELS)
        out.layer(f"{block}.attn.qkv", 3 * CHANNELS, CHANNELS)
        out.layer(f"{block}.attn.proj", CHANNELS, CHANNELS)
        out.layer(f"{block}.mlp.fc1", 4 * CHANNELS, CHANNELS)
        out.layer(f"{block}.mlp.fc2", CHANNELS, 4 * CHANNELS)
        for axis in "hw":
            shape = (length, CHANNELS // HEADS)
            out.state[f"{block}.attn.rel_pos_{axis}"] = torch.randn(shape)
    half, quarter = CHANNELS // 2, CHANNELS // 4
    for name, inputs, outputs in (("2.0", CHANNELS, half), ("2.3", half, quarter),
                              ("3.0", CHANNELS, half)):  # fmt: skip
        out.state[f"backbone.simfp_{name}.weight"] = torch.randn(inputs, outputs, 2, 2)
        out.state[f"backbone.simfp_{name}.bias"] = torch.randn(outputs)
    norm("backbone.simfp_2.1", half)
    widths = (quarter, half, CHANNELS, CHANNELS)
    for level, first, width in zip(range(2, 6), (4, 1, 0, 1), widths, strict=True):
        normed(f"backbone.simfp_{level}.{first}", PYRAMID, width, 1, 1)
        normed(f"backbone.simfp_{level}.{first + 1}", PYRAMID, PYRAMID, 3, 3)
    head = "proposal_generator.rpn_head."
    out.layer(head + "conv.conv0", PYRAMID, PYRAMID, 3, 3)
    out.layer(head + "conv.conv1", PYRAMID, PYRAMID, 3, 3)
    out.layer(head + "objectness_logits", 3, PYRAMID, 1, 1)
    out.layer(head + "anchor_deltas", 12, PYRAMID, 1, 1)
    for stage in (".0", ".1", ".2") if cascade else ("",):
        for number in range(1, 5):
            normed(f"roi_heads.box_head{stage}.conv{number}", PYRAMID, PYRAMID, 3, 3)
        out.layer(f"roi_heads.box_head{stage}.fc1", DIM, PYRAMID * 49)
        out.layer(f"roi_heads.box_predictor{stage}.cls_score", CLASSES, DIM)
        out.layer(
            f"roi_heads.box_predictor{stage}.bbox_pred", 4 if cascade else 4 * CLASSES - 4, DIM
        )
    for number in range(1, 5):
        normed(f"roi_heads.mask_head.mask_fcn{number}", PYRAMID, PYRAMID, 3, 3)
    out.layer("roi_heads.mask_head.deconv", PYRAMID, PYRAMID, 2, 2)
    out.layer("roi_heads.mask_head.predictor", CLASSES - 1, PYRAMID, 1, 1)
    return out.state


def scale(name: str, value: Tensor) -> Tensor:
    """Scale weights to keep the variance of activations."""
    if value.ndim == 1:
        return value if "norm" in name and name.endswith("weight") else value * 0.1
    if "pos_" in name:
        return value * 0.5
    transposed = name in ("deconv.weight",) or "simfp_2.0" in name or "simfp_2.3" in name
    fan_in = len(value) if transposed else value[0].numel()
    gain = 0.4 if "predictor" in name or "deltas" in name else 1.0
    return value * gain * (2 / fan_in) ** 0.5


def filled(model: torch.nn.Module) -> StateDict:
    """Make weights that depend on their names only."""
    state = {}
    for name, value in model.state_dict().items():
        seed = int.from_bytes(name.encode()[-8:], "little") + sum(name.encode())
        drawn = np.random.Generator(np.random.Philox(seed)).standard_normal(tuple(value.shape))
        value = torch.from_numpy(drawn).to(value.dtype)
        if ("norm" in name and name.endswith("weight")) or "simfp_2.1.weight" in name:
            value = 1 + 0.2 * value
        state[name] = scale(name, value)
    return state
