"""Pool RoIs of several images from several levels to one size.

Shapes: B images, R RoIs, C channels, S x S pooled, L levels.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from detlite.conventions import Convention, convention_of
from detlite.modeling.backbone import Backbone
from detlite.ops import assign_levels, pyramid_roi_align, pyramid_roi_pool
from detlite.registry import Registry
from detlite.structures import boxes as box_ops

# Functions that pool RoIs [R, 5] of (image index, xyxy) to S x S, each from the map
# [B, C, H_l, W_l] of its level: (maps, rois, S, 1 / stride of each map, sampling ratio,
# levels=int64 [R]). A module class with such a `forward` is created with (cfg, C).
PoolFunction = Callable[..., Tensor]
POOLERS: Registry[PoolFunction | type[nn.Module]] = Registry("pooler")
POOLERS.register("ROIAlign")(partial(pyramid_roi_align, aligned=False))
POOLERS.register("ROIAlignV2")(partial(pyramid_roi_align, aligned=True))


@POOLERS.register("ROIPool")
def _max_pool(
    maps: Any, rois: Tensor, size: int, scales: Any, _sampling: int, levels: Tensor
) -> Tensor:
    return pyramid_roi_pool(maps, rois, size, scales, levels=levels)


class Pooler(nn.Module):
    """Pools each RoI from the level that fits its size.

    Args:
        strides: of each level, finest first, each twice the previous one.
        sampling_ratio: samples per bin side; 0: depends on the size of the RoI.
    """

    def __init__(
        self,
        pool: PoolFunction,
        resolution: int,
        strides: Sequence[int],
        sampling_ratio: int,
        convention: Convention,
    ) -> None:
        super().__init__()
        self.pool = pool
        self.resolution = resolution
        self.scales = tuple(1.0 / stride for stride in strides)
        self.sampling_ratio = sampling_ratio
        self.convention = convention

    def forward(self, features: list[Tensor], rois: Tensor) -> Tensor:
        """Pool RoIs [R, 5] of (image index, xyxy) from the first L levels [B, C, H_l, W_l].

        Returns [R, C, S, S], zeros for image index -1 (padding).
        """
        # The level depends on the whole box, even if only a part of it is pooled.
        levels = assign_levels(rois[:, 1:], self.scales)
        region = box_ops.pooled_region(rois[:, 1:], self.convention)
        rois = torch.cat([rois[:, :1], region], dim=1)
        maps, options = features[: len(self.scales)], (self.resolution, self.scales)
        return self.pool(maps, rois, *options, self.sampling_ratio, levels=levels)


def build_pooler(cfg: CfgNode, section: str, backbone: Backbone) -> Pooler:
    """Build the pooler of MODEL.<section> ("ROI_BOX_HEAD", ...) for the pooled levels."""
    node = cfg.MODEL[section]
    pool = POOLERS.get(node.POOLER_TYPE, f"MODEL.{section}.POOLER_TYPE")
    return Pooler(
        pool(cfg, backbone.out_channels) if isinstance(pool, type) else pool,
        node.POOLER_RESOLUTION,
        backbone.strides[: backbone.pooled],
        node.POOLER_SAMPLING_RATIO,
        convention_of(cfg),
    )
