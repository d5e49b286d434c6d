"""Test-time augmentation: one set of detections from several views of a picture.

As in Detectron: the scored boxes of all views are brought into the first one's frame and suppressed
together. Then the mask and keypoint heads look at the boxes that are left in each view again, and
their maps are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from yacs.config import CfgNode

from ..config import ConfigError
from ..data.resize import resize_shortest
from ..modeling.detector import Detector
from ..modeling.roi_heads import Maps
from ..structures import boxes as box_ops
from ..structures.instances import Detections, Images, PredictedBoxes
from ..structures.keypoints import flip_order
from ..structures.rows import Rows, varying_shapes


@dataclass(frozen=True)
class View:
    """How a picture is shown to the network: resized (see `get_size`), perhaps mirrored."""

    min_size: int
    max_size: int
    flip: bool = False


class AugmentedDetector:
    """`Detector.detect` over several views of each picture.

    Args:
        model: a detector in evaluation mode.
        views: at least one.
        keypoint_names: of a model with a keypoint head: "left_..." and "right_..." change places
            in a mirrored view.

    Raises:
        ConfigError: a view is mirrored, and the model's keypoints have no names.
    """

    def __init__(
        self,
        model: Detector,
        views: Sequence[View],
        keypoint_names: Sequence[str] = (),
    ) -> None:
        flips = any(view.flip for view in views)
        if flips and "keypoints" in model.needs and not keypoint_names:
            raise ConfigError(
                "TEST.BBOX_AUG.H_FLIP and SCALE_H_FLIP must be False: left and right keypoints "
                "change places in a mirrored picture, and the checkpoint does not name them"
            )
        self.model = model
        self.views = tuple(views)
        self.flip_order = flip_order(keypoint_names)

    @torch.no_grad()
    def detect(
        self, pictures: Sequence[Tensor], proposals: Sequence[Tensor] | None = None
    ) -> list[Detections]:
        """Detections of pictures uint8 [3, H, W], each in its own frame, as `Detector.detect`."""
        given = [None] * len(pictures) if proposals is None else proposals
        with varying_shapes():
            return [self._detect(*pair) for pair in zip(pictures, given, strict=True)]

    def _detect(self, picture: Tensor, given: Tensor | None) -> Detections:
        model, convention, seen = self.model, self.model.convention, []
        size, predicted = (picture.shape[-2], picture.shape[-1]), []
        first: Images | None = None
        for view in self.views:
            image = resize_shortest(picture, view.min_size, view.max_size, convention.resize)
            net_size = (image.shape[-2], image.shape[-1])
            proposals = None
            if given is not None:
                moved = convention.rescale_boxes(given, size, net_size)
                proposals = [box_ops.mirror(moved, net_size[1]) if view.flip else moved]
            images, own = model.prepare([image.flip(-1) if view.flip else image], proposals)
            first = first or images
            features = model.backbone(images.pixels)
            found = model.postprocess.usable(
                model.predict_boxes(features, images, own), images.sizes
            )
            boxes = box_ops.mirror(found.boxes, net_size[1]) if view.flip else found.boxes
            clip = model.postprocess.clip == "before-nms"
            boxes = convention.rescale_boxes(boxes, images.sizes, first.sizes, clip)
            predicted.append(replace(found, boxes=boxes))
            if model.needs:  # maps are the memory of a view
                seen.append((view, features, net_size))
        assert first is not None
        detections = model.postprocess.suppress(_joined(predicted), len(self.views))
        detections = model.postprocess.finish(detections, first.sizes)
        boxes = convention.rescale_boxes(detections.boxes, first.sizes, size)
        detections = replace(detections, boxes=boxes)
        if model.needs:
            detections = self._with_maps(detections, seen, size)
        return detections.per_image()[0]

    def _with_maps(
        self,
        detections: Detections,
        seen: Sequence[tuple[View, list[Tensor], tuple[int, int]]],
        size: tuple[int, int],
    ) -> Detections:
        """Detections [1, D] of a picture with the mean of what heads see in every view of it."""
        rows, maps = Rows(detections.valid), Maps()
        for view, features, net_size in seen:
            boxes = self.model.convention.rescale_boxes(detections.boxes, size, net_size)
            boxes = box_ops.mirror(boxes, net_size[1]) if view.flip else boxes
            own = self.model.roi_heads.maps(features, rows, boxes, detections.labels)
            for name, value in own.items():
                value = self._unmirrored(name, value) if view.flip else value
                maps[name] = maps.get(name, 0) + value / len(self.views)
        return self.model.roi_heads.with_maps(detections, rows, maps)

    def _unmirrored(self, name: str, maps: Tensor) -> Tensor:
        """The maps [..., M, M] that a box has in the picture, from those of a mirrored view."""
        maps = maps.flip(-1)
        return maps[:, self.flip_order] if name == "keypoint_logits" else maps


def _joined(predicted: Sequence[PredictedBoxes]) -> PredictedBoxes:
    """Those of all views, as of one image."""
    names = ("boxes", "scores", "labels", "valid")
    return PredictedBoxes(*(torch.cat([getattr(own, n) for own in predicted], 1) for n in names))


def build_views(cfg: CfgNode) -> list[View]:
    """The views that TEST.BBOX_AUG asks for, that of plain evaluation first; none if it is off."""
    augmentation = cfg.TEST.BBOX_AUG
    if not augmentation.ENABLED:
        return []
    views = [View(cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.MAX_SIZE_TEST)]
    views += [View(scale, augmentation.MAX_SIZE) for scale in augmentation.SCALES]
    flips = [augmentation.H_FLIP] + [augmentation.SCALE_H_FLIP] * len(augmentation.SCALES)
    return [
        View(view.min_size, view.max_size, mirrored)
        for view, both in zip(views, flips, strict=True)
        for mirrored in ((False, True) if both else (False,))
    ]
