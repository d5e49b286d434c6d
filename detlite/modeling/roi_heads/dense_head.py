"""What mask and keypoint heads share: maps of RoIs, from features that may be shared."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from detlite.conventions import Convention, convention_of
from detlite.modeling.backbone import Backbone
from detlite.modeling.layers.basic import at_least_float32
from detlite.registry import Registry
from detlite.structures.instances import GroundTruth, Samples
from detlite.structures.padding import Rows

from .extractors import BuildExtractor, Extractor

H = TypeVar("H", bound="MapHead")


class MapHead(nn.Module, ABC):
    """Extractor and predictor of maps.

    Args:
        extractor: None to share the box head's.
        predictor: features [R, C, S, S] -> logits [R, ..., M, M].
        convention: which part of a box its map covers, and what it is trained on.
    """

    def __init__(
        self, extractor: Extractor | None, predictor: nn.Module, convention: Convention
    ) -> None:
        super().__init__()
        self.feature_extractor = extractor
        self.predictor = predictor
        self.convention = convention

    def forward(self, features: list[Tensor], rois: Tensor, shared: Tensor | None) -> Tensor:
        """float32 logits [R, ..., M, M] of RoIs [R, 5] in levels [B, C, H_l, W_l].

        `shared` is what the box head's extractor gives for them, where it is shared.
        """
        x = shared if self.feature_extractor is None else self.feature_extractor(features, rois)
        return at_least_float32(self.predictor(x))

    @abstractmethod
    def losses(
        self, logits: Tensor, rows: Rows, samples: Samples, truth: GroundTruth
    ) -> dict[str, Tensor]:
        """Scalar losses over foreground samples.

        Args:
            logits: of R rows.
            rows: which of the samples they are.
            samples: [B, F]; those that are not foreground do not count.
            truth: [B, G].
        """


def build_map_head(
    kind: type[H],
    cfg: CfgNode,
    head: str,
    backbone: Backbone,
    box_extractor: Extractor,
    extractors: Registry[BuildExtractor],
    predictors: Registry[Callable[[CfgNode, int], nn.Module]],
) -> H:
    """The head of a kind that its section (`head`) of the config describes.

    It may share `box_extractor`. Names are looked up in `extractors` and `predictors`.

    Raises:
        ValueError: a RESOLUTION that is not what the head gives, or a box head without maps to
            share.
    """
    node, key = cfg.MODEL[head], f"MODEL.{head}"
    extractor, pooling = None, "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION"
    if not node.SHARE_BOX_FEATURE_EXTRACTOR:
        build = extractors.get(node.FEATURE_EXTRACTOR, f"{key}.FEATURE_EXTRACTOR")
        extractor, pooling = build(cfg, backbone), f"{key}.POOLER_RESOLUTION"
    source = extractor or box_extractor
    side = getattr(source, "out_resolution", None)
    if side is None:
        raise ValueError(
            f"{key}.SHARE_BOX_FEATURE_EXTRACTOR is True, but "
            f"{cfg.MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR} gives vectors, not maps: set it to False"
        )
    predictor = predictors.get(node.PREDICTOR, f"{key}.PREDICTOR")(cfg, source.out_channels)
    resolution = predictor(torch.zeros(1, source.out_channels, side, side)).shape[-1]
    if resolution != node.RESOLUTION:
        raise ValueError(
            f"{key}.RESOLUTION is {node.RESOLUTION}, but the head gives {resolution} x "
            f"{resolution} from RoIs of {pooling}: set one to fit the other"
        )
    return kind(extractor, predictor, convention_of(cfg))
