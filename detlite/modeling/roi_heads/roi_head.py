"""Heads that predict more than classes and boxes: the base of mask, keypoint and own heads.

Shapes: B images, F samples and G ground truths per image, R packed rows (see
`detlite.structures.padding`), C channels, S x S pooled, M x M predicted.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from detlite.conventions import CONVENTIONS, Convention, convention_of
from detlite.modeling.backbone import Backbone
from detlite.modeling.precision import at_least_float32
from detlite.structures.instances import GroundTruth, Samples
from detlite.structures.padding import RowPacking

from .extractors import Extractor, build_extractor
from .predictors import build_predictor

H = TypeVar("H", bound="RoIHead")


class RoIHead(nn.Module, ABC):
    """Base class of heads that predict something for the boxes of objects.

    A head is trained on the foreground samples, and predicts fields of detections. With test-time
    augmentation, the mean of its `outputs` over all views becomes the fields.

    Args:
        extractor: None to use the features of the box head.
        predictor: computes logits from the features.

    Attributes:
        target: the field of targets that trains it.
        predicted: the names of the fields that `fields` returns.
    """

    target: ClassVar[str]
    predicted: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        extractor: Extractor | None,
        predictor: nn.Module,
        convention: Convention = CONVENTIONS["detlite"],
    ) -> None:
        super().__init__()
        self.feature_extractor = extractor
        self.predictor = predictor
        self.convention = convention

    def forward(self, features: list[Tensor], rois: Tensor, shared: Tensor | None) -> Tensor:
        """Predict float32 logits [R, ...] of RoIs [R, 5] in levels [B, C, H_l, W_l].

        A head without an extractor uses `shared`, the features by the extractor of the box head.
        """
        x = shared if self.feature_extractor is None else self.feature_extractor(features, rois)
        return at_least_float32(self.predictor(x))

    @abstractmethod
    def losses(
        self, logits: Tensor, packing: RowPacking, samples: Samples, truth: GroundTruth
    ) -> dict[str, Tensor]:
        """Compute the scalar losses of the logits of packed rows of samples [B, F]."""

    def outputs(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return what is averaged over the views of an image, for rows of labels [R]."""
        return logits

    def unmirrored(self, outputs: Tensor, flip_order: Sequence[int]) -> Tensor:
        """Return the outputs of a mirrored view as those of the image.

        `flip_order` is the index of the keypoint that replaces each one.
        """
        return outputs

    @abstractmethod
    def fields(self, outputs: Tensor, boxes: Tensor) -> dict[str, Tensor]:
        """Return the fields [R, ...] of detections with boxes [R, 4], by name."""


def build_map_head(
    kind: type[H], section: str, cfg: CfgNode, backbone: Backbone, box_extractor: Extractor
) -> H:
    """Build a head of class `kind` from MODEL.<section>, "ROI_MASK_HEAD" or "ROI_KEYPOINT_HEAD".

    It uses `box_extractor` if SHARE_BOX_FEATURE_EXTRACTOR is True.
    """
    node, key = cfg.MODEL[section], f"MODEL.{section}"
    extractor, pooling = None, "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION"
    if not node.SHARE_BOX_FEATURE_EXTRACTOR:
        extractor, pooling = build_extractor(cfg, backbone, section), f"{key}.POOLER_RESOLUTION"
    source = extractor or box_extractor
    side = getattr(source, "out_resolution", None)
    if side is None:
        raise ValueError(
            f"{key}.SHARE_BOX_FEATURE_EXTRACTOR must be False: "
            f"{cfg.MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR} computes vectors, not maps"
        )
    predictor = build_predictor(cfg, section, source.out_channels)
    resolution = predictor(torch.zeros(1, source.out_channels, side, side)).shape[-1]
    if resolution != node.RESOLUTION:
        raise ValueError(
            f"{key}.RESOLUTION is {node.RESOLUTION}, but the head predicts {resolution} x "
            f"{resolution} from RoIs of {pooling}: set one to fit the other"
        )
    return kind(extractor, predictor, convention_of(cfg))
