"""The RoI heads: box head, mask head, keypoint head and own heads.

Shapes: B images of `sizes` int64 [B, 2] (height, width), and `features`, the levels
[B, C, H_l, W_l] of the backbone; S samples, G ground truths and D detections per image, padded;
R packed rows. With `static_shapes`, padding is computed too.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from yacs.config import CfgNode

from detlite.modeling.backbone import Backbone
from detlite.modeling.layers.norm import uses_batch_statistics
from detlite.modeling.precision import at_least_float32
from detlite.structures.instances import Detections, GroundTruth, Samples
from detlite.structures.padding import RowPacking

from .box_head import BoxHead, BoxPredictions, box_head_options
from .cascade import CascadeBoxHead, RepeatedBoxHead, build_cascade
from .keypoint_head import KeypointHead
from .mask_head import MaskHead, build_mask_head
from .roi_head import RoIHead, build_map_head

# Outputs for packed rows by the names of heads: "mask" [R, M, M], "keypoint" [R, K, M, M], those of
# own heads [R, ...], and the box head's "features" [R, C].
HeadOutputs = dict[str, Tensor]


class RoIHeads(nn.Module):
    """A box head or cascade, an optional mask and keypoint head, and own heads.

    `roi_heads.add_module(name, head)` adds an own head, a subclass of `RoIHead`. A head without an
    extractor uses the features of the box head. With `returns_features`, these are part of
    detections.
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
    def heads(self) -> dict[str, RoIHead]:
        """The mask, keypoint and own heads by name, such as "mask"."""
        return {name: head for name, head in self.named_children() if isinstance(head, RoIHead)}

    @property
    def predicted(self) -> tuple[str, ...]:
        """The fields that the heads add to detections."""
        names = [name for head in self.heads.values() for name in head.predicted]
        return (*names, *(("features",) if self.returns_features else ()))

    @property
    def shares_features(self) -> bool:
        """True if a head uses the features of the box head."""
        return any(head.feature_extractor is None for head in self.heads.values())

    def head_losses(
        self,
        features: list[Tensor],
        foreground: Samples,
        truth: GroundTruth,
        predictions: BoxPredictions,
        static_shapes: bool,
        rows: int | None = None,
    ) -> dict[str, Tensor]:
        """Compute the losses of the heads for samples [B, F] with labels above 0.

        `predictions` are the box head's for all samples. With static shapes, `rows` limits the
        computed rows, see `RowPacking`.
        """
        if not self.heads:
            return {}
        # Padding must not be part of batch statistics.
        batch_statistics = any(map(uses_batch_statistics, self.heads.values()))
        packing = RowPacking(foreground.labels > 0, static_shapes and not batch_statistics, rows)
        rois = packing.rois(foreground.boxes)
        shared = None
        if self.shares_features:
            # The foreground samples are the first ones of each image.
            numbers = predictions.packing.row_numbers()[:, : foreground.labels.shape[1]]
            shared = predictions.features[packing.pack(numbers)]
        losses: dict[str, Tensor] = {}
        for head in self.heads.values():
            losses |= head.losses(head(features, rois, shared), packing, foreground, truth)
        return losses

    def add_fields(
        self, features: list[Tensor], detections: Detections, static_shapes: bool
    ) -> Detections:
        """Predict the masks, keypoints and own fields of detections [B, D]."""
        if not self.predicted:
            return detections
        packing = RowPacking(detections.valid, static_shapes)
        outputs = self.head_outputs(features, packing, detections.boxes, detections.labels)
        return self.with_head_outputs(detections, packing, outputs)

    def head_outputs(
        self, features: list[Tensor], packing: RowPacking, boxes: Tensor, labels: Tensor
    ) -> HeadOutputs:
        """Compute the outputs of the heads for boxes [B, D, 4] with labels [B, D]."""
        rois = packing.rois(boxes)
        outputs: HeadOutputs = {}
        shared = None
        if self.shares_features or self.returns_features:
            shared = self.box.feature_extractor(features, rois)
        if self.returns_features and shared is not None:
            maps = at_least_float32(shared)
            outputs["features"] = maps.flatten(2).mean(dim=2) if maps.dim() == 4 else maps
        rows = packing.pack(labels)
        for name, head in self.heads.items():
            outputs[name] = head.outputs(head(features, rois, shared), rows)
        return outputs

    def unmirrored(self, outputs: HeadOutputs, flip_order: Sequence[int]) -> HeadOutputs:
        """Return the outputs for a mirrored view as those for the image, see `RoIHead`."""
        heads = self.heads.items()
        return outputs | {name: head.unmirrored(outputs[name], flip_order) for name, head in heads}

    def with_head_outputs(
        self, detections: Detections, packing: RowPacking, outputs: HeadOutputs
    ) -> Detections:
        """Add features, masks, keypoints and own fields to detections [B, D]."""
        boxes = packing.pack(detections.boxes)
        rows = {"features": outputs["features"]} if self.returns_features else {}
        for name, head in self.heads.items():
            rows |= head.fields(outputs[name], boxes)
        return detections.with_fields({name: packing.unpack(row) for name, row in rows.items()})


def build_roi_heads(cfg: CfgNode, backbone: Backbone) -> RoIHeads:
    """Build the RoI heads that MODEL enables."""
    box: BoxHead | CascadeBoxHead | RepeatedBoxHead
    mask, keypoint = None, None
    if cfg.MODEL.ROI_HEADS.CASCADE_IOUS or cfg.MODEL.ROI_BOX_HEAD.PASSES > 1:
        box = build_cascade(cfg, backbone)
    else:
        box = BoxHead(**box_head_options(cfg, backbone))
    if cfg.MODEL.MASK_ON:
        mask = build_mask_head(cfg, backbone, box.feature_extractor)
    if cfg.MODEL.KEYPOINT_ON:
        extractor = box.feature_extractor
        keypoint = build_map_head(KeypointHead, "ROI_KEYPOINT_HEAD", cfg, backbone, extractor)
    return RoIHeads(box, mask, keypoint, "features" in cfg.TEST.EXTRA_OUTPUTS)
