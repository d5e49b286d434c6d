"""Anchor boxes on a grid (Ren et al., Faster R-CNN, https://arxiv.org/abs/1506.01497)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from detlite.conventions import Convention, convention_of
from detlite.modeling.precision import at_least_float32


class AnchorGenerator(nn.Module):
    """Generates anchors of every size and aspect ratio at every cell of every level.

    Args:
        sizes: for each level, the sides of its square anchors in pixels.
        aspect_ratios: height / width; the area stays size squared.
        strides: image pixels per cell of each level.
        convention: rules of placing and rounding anchors. If `anchor_spacing` is "fit", images must
            be padded to multiples of the finest stride.
    """

    def __init__(
        self,
        sizes: Sequence[Sequence[float]],
        aspect_ratios: Sequence[float],
        strides: Sequence[int],
        convention: Convention,
    ) -> None:
        super().__init__()
        self.strides = strides
        self.convention = convention
        for level, (level_sizes, stride) in enumerate(zip(sizes, strides, strict=True)):
            cell = _cell_anchors(level_sizes, aspect_ratios, stride, convention.anchor_rounding)
            # Not persistent, because the config determines them.
            self.register_buffer(f"cell{level}", cell, persistent=False)

    @property
    def per_cell(self) -> list[int]:
        """The number of anchors per cell of each level."""
        return [len(self.get_buffer(f"cell{level}")) for level in range(len(self.strides))]

    def forward(self, sizes: Sequence[tuple[int, int]]) -> list[Tensor]:
        """Generate anchors [H * W * A, 4] in image pixels for each map size (H, W).

        They are ordered by row, column and anchor.
        """
        steps = [(stride, stride) for stride in self.strides]
        if self.convention.anchor_spacing == "fit":
            rows, columns = (side * self.strides[0] for side in sizes[0])  # the padded image
            steps = [(rows // height, columns // width) for height, width in sizes]
        anchors, offset = [], self.convention.anchor_offset
        for level, (size, step) in enumerate(zip(sizes, steps, strict=True)):
            cell = self.get_buffer(f"cell{level}")
            y, x = (torch.arange(cells, device=cell.device) + offset for cells in size)
            y, x = torch.meshgrid(y * step[0], x * step[1], indexing="ij")
            centers = torch.stack([x, y, x, y], dim=-1).reshape(-1, 1, 4)  # [H W, 1, 4]
            anchors.append((centers + cell).reshape(-1, 4))
        return anchors


def per_anchor(predictions: Tensor, values: int) -> Tensor:
    """Rearrange [B, A * values, H, W] to float32 [B, H * W * A, values], like the anchors."""
    batch, channels, height, width = predictions.shape
    predictions = predictions.view(batch, channels // values, values, height, width)
    predictions = predictions.permute(0, 3, 4, 1, 2).reshape(batch, -1, values)
    return at_least_float32(predictions)


def build_anchors(
    cfg: CfgNode, strides: Sequence[int], section: str, octaves: Sequence[float] = (1.0,)
) -> AnchorGenerator:
    """Build the anchors of MODEL.<section>: "RPN" or "RETINANET".

    A single level has the anchors of all sizes. Each size is multiplied by each of `octaves`.
    """
    node = cfg.MODEL[section]
    levels = [size if isinstance(size, (tuple, list)) else (size,) for size in node.ANCHOR_SIZES]
    if len(strides) == 1:
        levels = [tuple(side for level in levels for side in level)]
    if len(levels) != len(strides) or len(set(map(len, levels))) > 1:
        raise ValueError(
            f"MODEL.{section}.ANCHOR_SIZES is {node.ANCHOR_SIZES}, but MODEL.BACKBONE.CONV_BODY "
            f"({cfg.MODEL.BACKBONE.CONV_BODY}) has {len(strides)} levels: set one size, or the "
            "same number of sizes, for each level"
        )
    sizes = [tuple(side * factor for side in level for factor in octaves) for level in levels]
    return AnchorGenerator(sizes, node.ASPECT_RATIOS, strides, convention_of(cfg))


def _cell_anchors(
    sizes: Sequence[float], aspect_ratios: Sequence[float], stride: int, rounding: str
) -> Tensor:
    """Return anchors [A, 4] around the origin; ratios vary slowest, as in maskrcnn-benchmark."""
    ratios = torch.tensor(aspect_ratios, dtype=torch.float64)[:, None]
    side = torch.tensor(sizes, dtype=torch.float64)[None, :]
    if rounding == "cell":
        cell_width = (stride / ratios.sqrt()).round()
        cell_height = (cell_width * ratios).round()
        width, height = cell_width * side / stride, cell_height * side / stride
    else:
        width, height = side / ratios.sqrt(), side * ratios.sqrt()
    anchors = torch.stack([-width, -height, width, height], dim=-1).flatten(0, 1) / 2
    return (anchors.round() if rounding == "corners" else anchors).float()
