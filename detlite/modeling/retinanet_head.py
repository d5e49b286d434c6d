"""RetinaNet's head: two towers that score and move every anchor.

Shapes: B images, levels [B, C, H_l, W_l], N_l = H_l W_l A anchors on level l, S scores an anchor.
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from .anchors import per_anchor
from .layers import conv_block, init_normal
from .norm import Norm


class RetinaNetHead(nn.Module):
    """Two towers of 3x3s, shared by all levels: one scores the anchors of a cell, one moves them.

    Args:
        in_channels: of every level, and of the towers.
        anchors_per_cell: A.
        num_scores: S.
        num_convs: in each tower.
        norm: optional norm after each of them.
        prior: the score that every anchor starts with.
    """

    def __init__(
        self,
        in_channels: int,
        anchors_per_cell: int,
        num_scores: int,
        num_convs: int,
        norm: Norm | None,
        prior: float,
    ) -> None:
        super().__init__()
        self.num_scores = num_scores

        def tower() -> nn.Sequential:
            widths = [in_channels] * num_convs
            return nn.Sequential(*(conv_block(c, c, 3, norm=norm, relu=True) for c in widths))

        self.cls_tower, self.bbox_tower = tower(), tower()
        self.cls_logits = nn.Conv2d(in_channels, anchors_per_cell * num_scores, 3, padding=1)
        self.bbox_pred = nn.Conv2d(in_channels, anchors_per_cell * 4, 3, padding=1)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                init_normal(layer, std=0.01)
        assert self.cls_logits.bias is not None
        # Rare objects among many anchors: without it the background's loss drowns the first steps.
        nn.init.constant_(self.cls_logits.bias, -math.log((1 - prior) / prior))

    def forward(self, features: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Levels [B, C, H_l, W_l] -> float32 logits [B, N_l, S] and deltas [B, N_l, 4] of each."""
        logits = [self.cls_logits(self.cls_tower(feature)) for feature in features]
        deltas = [self.bbox_pred(self.bbox_tower(feature)) for feature in features]
        return [per_anchor(x, self.num_scores) for x in logits], [per_anchor(x, 4) for x in deltas]
