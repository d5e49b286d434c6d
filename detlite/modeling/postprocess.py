"""From predicted boxes to detections: clipped, thresholded by size, suppressed. The one place.

Shapes: B images, N predicted boxes and D detections in an image, padded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor
from yacs.config import CfgNode

from ..convention import Convention, convention_of
from ..structures import boxes as box_ops
from ..structures.instances import Detections, PredictedBoxes
from ..structures.rows import gather, leading
from .suppression import Suppression, build_suppression, suppress


@dataclass(frozen=True)
class Postprocess:
    """Which predicted boxes become detections.

    Plain inference calls the whole; test-time augmentation calls `usable` for each view, and then
    `suppress` and `finish` for all together.

    Attributes:
        convention: how boxes are clipped.
        suppression: what happens to boxes of one label that overlap.
        detections_per_image: how many of an image are kept at most, the best.
        min_size: clipped boxes need sides of so many pixels of the network's input, and of more
            than 0; negative: even empty ones stay.
        clip: whether boxes are clipped, and small ones dropped, before or after suppression.
    """

    convention: Convention
    suppression: Suppression
    detections_per_image: int
    min_size: float = 0.0
    clip: Literal["before-nms", "after-nms"] = "before-nms"

    def __call__(self, predicted: PredictedBoxes, sizes: Tensor) -> Detections:
        """Detections [B, D] of predicted boxes [B, N] in images of sizes [B, 2]."""
        return self.finish(self.suppress(self.usable(predicted, sizes)), sizes)

    def usable(self, predicted: PredictedBoxes, sizes: Tensor) -> PredictedBoxes:
        """The boxes that may compete: clipped and large enough, where that comes first."""
        if self.clip == "after-nms":
            return predicted
        boxes = self.convention.clip(predicted.boxes, sizes)
        return replace(predicted, boxes=boxes, valid=predicted.valid & self._large(boxes))

    def suppress(self, predicted: PredictedBoxes, views: int = 1) -> Detections:
        """The best that do not overlap.

        Args:
            predicted: [B, N].
            views: how many views of the image they come from, see `Suppression`.
        """
        return suppress(predicted, self.suppression, self.detections_per_image, views)

    def finish(self, detections: Detections, sizes: Tensor) -> Detections:
        """Clips and drops what is too small, where that comes last."""
        if self.clip == "before-nms":
            return detections
        boxes = self.convention.clip(detections.boxes, sizes)
        index, valid = leading(detections.valid & self._large(boxes), boxes.shape[1])
        kept = replace(detections, boxes=boxes).map(lambda field: gather(field, index))
        return replace(kept, valid=valid)

    def _large(self, boxes: Tensor) -> Tensor:
        """Bool [B, N]."""
        if self.min_size < 0:
            return boxes.new_ones(boxes.shape[:-1]).bool()
        return box_ops.at_least(boxes, self.min_size)


def build_postprocess(cfg: CfgNode) -> Postprocess:
    """That of the box head: MODEL.ROI_HEADS and TEST.NMS."""
    heads, convention = cfg.MODEL.ROI_HEADS, convention_of(cfg)
    return Postprocess(
        convention,
        build_suppression(cfg, heads.NMS),
        heads.DETECTIONS_PER_IMG,
        convention.detection_min_size,
    )
