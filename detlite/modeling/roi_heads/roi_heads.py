"""The RoI heads: box head, mask head and keypoint head.

Shapes: B images of `sizes` int64 [B, 2] (height, width), and `features`, the levels
[B, C, H_l, W_l] of the backbone; S samples, G ground truths and D detections per image, padded;
R packed rows. With `static_shapes`, padding is computed too.
"""

from dataclasses import replace

from torch import Tensor, nn
from yacs.config import CfgNode

from detlite.modeling.backbone import Backbone
from detlite.modeling.layers.norm import uses_batch_statistics
from detlite.modeling.precision import at_least_float32
from detlite.structures.instances import Detections, GroundTruth, Samples
from detlite.structures.padding import RowPacking

from .box_head import BoxHead, BoxPredictions, build_box_head
from .cascade import CascadeBoxHead, RepeatedBoxHead, build_cascade
from .keypoint_head import KeypointHead
from .map_head import MapHead, build_map_head
from .mask_head import MaskHead, build_mask_head

# Outputs for packed rows: "mask_probs" [R, M, M], "keypoint_logits" [R, K, M, M] and the box
# head's "features" [R, C].
MapOutputs = dict[str, Tensor]


class RoIHeads(nn.Module):
    """A box head or cascade, and an optional mask and keypoint head.

    A mask or keypoint head without an extractor uses the features of the box head. With
    `returns_features`, these are part of detections.
    """

    def __init__(
        self,
        box: BoxHead | CascadeBoxHead,
        mask: MaskHead | None = None,
        keypoint: KeypointHead | None = None,
        returns_features: bool = False,
    ) -> None:
        super().__init__()
        self.returns_features = returns_features
        self.box = box
        self.mask = mask
        self.keypoint = keypoint

    @property
    def map_heads(self) -> dict[str, MapHead]:
        """The enabled mask and keypoint heads, by the field of targets that trains them."""
        heads = {"masks": self.mask, "keypoints": self.keypoint}
        return {name: head for name, head in heads.items() if head is not None}

    @property
    def has_map_outputs(self) -> bool:
        """True if detections contain masks, keypoints or features."""
        return bool(self.map_heads) or self.returns_features

    @property
    def shares_features(self) -> bool:
        """True if a mask or keypoint head uses the features of the box head."""
        return any(head.feature_extractor is None for head in self.map_heads.values())

    def map_losses(
        self,
        features: list[Tensor],
        foreground: Samples,
        truth: GroundTruth,
        predictions: BoxPredictions,
        static_shapes: bool,
        rows: int | None = None,
    ) -> dict[str, Tensor]:
        """Compute the losses of the mask and keypoint heads for samples [B, F] with labels above 0.

        `predictions` are the box head's for all samples. With static shapes, `rows` limits the
        computed rows, see `RowPacking`.
        """
        if not self.map_heads:
            return {}
        # Padding must not be part of batch statistics.
        batch_statistics = any(map(uses_batch_statistics, self.map_heads.values()))
        packing = RowPacking(foreground.labels > 0, static_shapes and not batch_statistics, rows)
        rois = packing.rois(foreground.boxes)
        shared = None
        if self.shares_features:
            shared = predictions.features_of(packing, foreground.labels.shape[1])
        losses: dict[str, Tensor] = {}
        for head in self.map_heads.values():
            losses |= head.losses(head(features, rois, shared), packing, foreground, truth)
        return losses

    def add_map_outputs(
        self, features: list[Tensor], detections: Detections, static_shapes: bool
    ) -> Detections:
        """Predict the masks and keypoints of detections [B, D]."""
        if not self.has_map_outputs:
            return detections
        packing = RowPacking(detections.valid, static_shapes)
        outputs = self.map_outputs(features, packing, detections.boxes, detections.labels)
        return self.with_map_outputs(detections, packing, outputs)

    def map_outputs(
        self, features: list[Tensor], packing: RowPacking, boxes: Tensor, labels: Tensor
    ) -> MapOutputs:
        """Compute the outputs of the mask and keypoint heads for boxes [B, D, 4], labels [B, D]."""
        rois = packing.rois(boxes)
        outputs: MapOutputs = {}
        shared = None
        if self.shares_features or self.returns_features:
            shared = self.box.feature_extractor(features, rois)
        if self.returns_features and shared is not None:
            maps = at_least_float32(shared)
            outputs["features"] = maps.flatten(2).mean(dim=2) if maps.dim() == 4 else maps
        if self.mask is not None:
            logits = self.mask(features, rois, shared)
            outputs["mask_probs"] = self.mask.probabilities(logits, packing.pack(labels))
        if self.keypoint is not None:
            outputs["keypoint_logits"] = self.keypoint(features, rois, shared)
        return outputs

    def with_map_outputs(
        self, detections: Detections, packing: RowPacking, outputs: MapOutputs
    ) -> Detections:
        """Add features, masks, and the keypoints located in heat maps, to detections [B, D]."""
        if self.returns_features:
            detections = replace(detections, features=packing.unpack(outputs["features"]))
        if self.mask is not None:
            detections = replace(detections, mask_probs=packing.unpack(outputs["mask_probs"]))
        if self.keypoint is not None:
            boxes = packing.pack(detections.boxes)
            keypoints, scores = self.keypoint.locate(outputs["keypoint_logits"], boxes)
            keypoints, scores = packing.unpack(keypoints), packing.unpack(scores)
            detections = replace(detections, keypoints=keypoints, keypoint_scores=scores)
        return detections


def build_roi_heads(cfg: CfgNode, backbone: Backbone) -> RoIHeads:
    """Build the RoI heads that MODEL enables."""
    box: BoxHead | CascadeBoxHead | RepeatedBoxHead
    mask, keypoint = None, None
    if cfg.MODEL.ROI_HEADS.CASCADE_IOUS or cfg.MODEL.ROI_BOX_HEAD.PASSES > 1:
        box = build_cascade(cfg, backbone)
    else:
        box = build_box_head(cfg, backbone)
    if cfg.MODEL.MASK_ON:
        mask = build_mask_head(cfg, backbone, box.feature_extractor)
    if cfg.MODEL.KEYPOINT_ON:
        extractor = box.feature_extractor
        keypoint = build_map_head(KeypointHead, "ROI_KEYPOINT_HEAD", cfg, backbone, extractor)
    return RoIHeads(box, mask, keypoint, "features" in cfg.TEST.EXTRA_OUTPUTS)
