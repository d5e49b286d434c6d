"""Anchor boxes on a grid (Ren et al., Faster R-CNN, https://arxiv.org/abs/1506.01497)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class AnchorGenerator(nn.Module):
    """Anchors of every size and aspect ratio at every cell of every level.

    Args:
        sizes: for each level, the sides in pixels of its square anchors.
        aspect_ratios: height / width; the area stays size squared.
        strides: image pixels per cell of each level.
        offset: where in its cell an anchor is centred, as a fraction of the stride.
    """

    def __init__(
        self,
        sizes: Sequence[Sequence[float]],
        aspect_ratios: Sequence[float],
        strides: Sequence[int],
        offset: float,
    ) -> None:
        super().__init__()
        if len(sizes) != len(strides):
            raise ValueError(f"{len(sizes)} levels of anchor sizes for {len(strides)} strides")
        self.strides = strides
        self.offset = offset
        for level, level_sizes in enumerate(sizes):
            cell = _cell_anchors(level_sizes, aspect_ratios)
            # Not persistent: they follow from the config, not from training.
            self.register_buffer(f"cell{level}", cell, persistent=False)

    @property
    def per_cell(self) -> list[int]:
        """How many anchors a cell of each level has."""
        return [len(self.get_buffer(f"cell{level}")) for level in range(len(self.strides))]

    def forward(self, sizes: Sequence[tuple[int, int]]) -> list[Tensor]:
        """Anchors for maps of the given (height, width).

        Returns:
            For each level float32 [H * W * A, 4] xyxy in image pixels, ordered by row, column,
            then anchor.
        """
        return [self._grid(level, *size) for level, size in enumerate(sizes)]

    def _grid(self, level: int, height: int, width: int) -> Tensor:
        cell, stride = self.get_buffer(f"cell{level}"), self.strides[level]
        y = (torch.arange(height, device=cell.device) + self.offset) * stride
        x = (torch.arange(width, device=cell.device) + self.offset) * stride
        y, x = torch.meshgrid(y, x, indexing="ij")
        centres = torch.stack([x, y, x, y], dim=-1).reshape(-1, 1, 4)  # (H W, 1, 4)
        return (centres + cell).reshape(-1, 4)


def _cell_anchors(sizes: Sequence[float], aspect_ratios: Sequence[float]) -> Tensor:
    """[A, 4] anchors around the origin; ratios vary slowest, as in maskrcnn-benchmark."""
    ratios = torch.tensor(aspect_ratios, dtype=torch.float64)[:, None]
    side = torch.tensor(sizes, dtype=torch.float64)[None, :]
    width, height = (side / ratios.sqrt()).flatten(), (side * ratios.sqrt()).flatten()
    return (torch.stack([-width, -height, width, height], dim=1) / 2).float()
