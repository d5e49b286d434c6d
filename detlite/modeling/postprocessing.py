"""Turn predicted boxes into detections: clip them, drop small ones, suppress duplicates.

Shapes: B images, N predicted boxes and D detections per image, padded.
"""

from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from torch import Tensor
from yacs.config import CfgNode

from detlite.conventions import Convention, convention_of
from detlite.structures import boxes as box_ops
from detlite.structures.instances import Detections, PredictedBoxes
from detlite.structures.padding import first_valid, gather

from .boxes.suppression import Suppression, suppress

P = TypeVar("P", bound=PredictedBoxes)


@dataclass(frozen=True)
class Postprocess:
    """Selects the predicted boxes that become detections.

    Test-time augmentation calls the steps one by one: `select` for each view, then `suppress` and
    `finish` for the boxes of all views.
    """

    convention: Convention
    suppression: Suppression
    detections_per_image: int
    min_size: float = 0.0  # pixels, of the sides of clipped boxes; negative: keep empty boxes too
    clip: Literal["before-nms", "after-nms"] = "before-nms"  # clip boxes and drop small ones

    def __call__(
        self, predicted: PredictedBoxes, sizes: Tensor, static_shapes: bool, min_score: float = 0.0
    ) -> Detections:
        """Select detections [B, D] from boxes [B, N] in images of `sizes` int64 [B, 2].

        With `static_shapes`, D is the largest possible number instead of the largest actual number.
        """
        detections = self.suppress(self.select(predicted, sizes), static_shapes)
        return self.finish(detections, sizes, static_shapes, min_score)

    def select(self, predicted: PredictedBoxes, sizes: Tensor) -> PredictedBoxes:
        """Clip boxes and drop small ones, if that comes before suppression."""
        return predicted if self.clip == "after-nms" else self._clip(predicted, sizes)

    def suppress(
        self, predicted: PredictedBoxes, static_shapes: bool, views: int = 1
    ) -> Detections:
        """Suppress overlaps among boxes [B, N] that come from `views` views of each image."""
        limit = self.detections_per_image
        return suppress(predicted, self.suppression, limit, static_shapes, views)

    def finish(
        self, detections: Detections, sizes: Tensor, static_shapes: bool, min_score: float = 0.0
    ) -> Detections:
        """Drop low scores; clip boxes and drop small ones, if that comes after suppression."""
        detections = replace(detections, valid=detections.valid & (detections.scores >= min_score))
        if self.clip == "before-nms":
            return detections
        detections = self._clip(detections, sizes)
        index, valid = first_valid(detections.valid, detections.valid.shape[1], static_shapes)
        return replace(detections.map(lambda field: gather(field, index)), valid=valid)

    def _clip(self, predicted: P, sizes: Tensor) -> P:
        boxes = box_ops.clip(predicted.boxes, sizes, self.convention)
        valid = predicted.valid
        if self.min_size >= 0:
            valid = valid & box_ops.has_min_size(boxes, self.min_size)
        return replace(predicted, boxes=boxes, valid=valid)


def build_suppression(cfg: CfgNode, iou_thresh: float) -> Suppression:
    """Build the suppression settings from TEST.NMS and an IoU threshold."""
    nms = cfg.TEST.NMS
    return Suppression(iou_thresh, nms.METHOD, nms.CLASS_AGNOSTIC)


def build_postprocess(cfg: CfgNode) -> Postprocess:
    """Build the postprocessing of the box head from MODEL.ROI_HEADS and TEST.NMS."""
    heads, convention = cfg.MODEL.ROI_HEADS, convention_of(cfg)
    suppression, limit = build_suppression(cfg, heads.NMS), heads.DETECTIONS_PER_IMG
    return Postprocess(convention, suppression, limit, convention.detection_min_size)
