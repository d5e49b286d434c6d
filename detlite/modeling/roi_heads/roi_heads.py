"""The heads of the second stage: boxes, and what mask and keypoint heads add to them.

Shapes: B images, S samples and D detections in an image, R rows that are computed.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn
from yacs.config import CfgNode

from detlite.modeling.backbone import Backbone
from detlite.modeling.layers.norm import takes_batch_statistics
from detlite.structures.instances import Detections, GroundTruth, Samples
from detlite.structures.padding import Rows

from .box_head import BoxPredictions
from .cascade import BoxStage, build_box_stage
from .dense_head import MapHead, build_map_head
from .keypoint_head import KEYPOINT_EXTRACTORS, KEYPOINT_PREDICTORS, KeypointHead
from .mask_head import MaskHead, build_mask_head

# Maps of the rows that were computed: "mask_probs" [R, M, M], "keypoint_logits" [R, K, M, M].
Maps = dict[str, Tensor]


class RoIHeads(nn.Module):
    """A box head (or a cascade), and a mask head and a keypoint head or None.

    A head without an extractor of its own shares that of the box head.
    """

    def __init__(
        self, box: BoxStage, mask: MaskHead | None = None, keypoint: KeypointHead | None = None
    ) -> None:
        super().__init__()
        self.box = box
        self.mask = mask
        self.keypoint = keypoint

    @property
    def map_heads(self) -> list[MapHead]:
        """The mask head and the keypoint head, as far as there are."""
        return [head for head in (self.mask, self.keypoint) if head is not None]

    @property
    def shares(self) -> bool:
        """Whether a head needs what the box head's extractor gives."""
        return any(head.feature_extractor is None for head in self.map_heads)

    def map_losses(
        self,
        features: list[Tensor],
        foreground: Samples,
        truth: GroundTruth,
        predictions: BoxPredictions,
    ) -> dict[str, Tensor]:
        """Losses of the mask and keypoint heads.

        Of the first samples [B, F] those with a label above 0 count; `predictions` are the box
        head's of all samples.
        """
        losses: dict[str, Tensor] = {}
        if not self.map_heads:
            return losses
        unpadded = any(map(takes_batch_statistics, self.map_heads))
        rows = Rows(foreground.labels > 0, unpadded)
        rois = rows.rois(foreground.boxes)
        shared = predictions.features_of(rows, foreground.labels.shape[1]) if self.shares else None
        for head in self.map_heads:
            losses |= head.losses(head(features, rois, shared), rows, foreground, truth)
        return losses

    def maps(self, features: list[Tensor], rows: Rows, boxes: Tensor, labels: Tensor) -> Maps:
        """What the mask and keypoint heads see in boxes [B, D, 4] with labels [B, D]."""
        maps: Maps = {}
        if not self.map_heads:
            return maps
        rois = rows.rois(boxes)
        shared = self.box.feature_extractor(features, rois) if self.shares else None
        if self.mask is not None:
            logits = self.mask(features, rois, shared)
            maps["mask_probs"] = self.mask.probabilities(logits, rows.pack(labels))
        if self.keypoint is not None:
            maps["keypoint_logits"] = self.keypoint(features, rois, shared)
        return maps

    def with_maps(self, detections: Detections, rows: Rows, maps: Maps) -> Detections:
        """Detections [B, D] with their masks, and the keypoints found in their maps."""
        if self.mask is not None:
            detections = replace(detections, mask_probs=rows.unpack(maps["mask_probs"]))
        if self.keypoint is not None:
            boxes = rows.pack(detections.boxes)
            keypoints, scores = self.keypoint.locate(maps["keypoint_logits"], boxes)
            detections = replace(
                detections, keypoints=rows.unpack(keypoints), keypoint_scores=rows.unpack(scores)
            )
        return detections


def build_roi_heads(cfg: CfgNode, backbone: Backbone) -> RoIHeads:
    """The heads that the config asks for."""
    box = build_box_stage(cfg, backbone)
    shared, mask, keypoint = box.feature_extractor, None, None
    if cfg.MODEL.MASK_ON:
        mask = build_mask_head(cfg, backbone, shared)
    if cfg.MODEL.KEYPOINT_ON:
        keypoint = build_map_head(
            KeypointHead,
            cfg,
            "ROI_KEYPOINT_HEAD",
            backbone,
            shared,
            KEYPOINT_EXTRACTORS,
            KEYPOINT_PREDICTORS,
        )
    return RoIHeads(box, mask, keypoint)
