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
from torch.utils._pytree import tree_map
from yacs.config import CfgNode

from detlite.config import ConfigError
from detlite.data.transforms.resize import resize_shortest
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.roi_heads.roi_heads import Maps
from detlite.structures import boxes as box_ops
from detlite.structures.instances import Detections
from detlite.structures.keypoints import flip_order
from detlite.structures.padding import Rows, varying_shapes


@dataclass(frozen=True)
class View:
    """How a picture is shown to the network: resized (see `get_size`), perhaps mirrored."""

    min_size: int
    max_size: int
    flip: bool = False

    def mirror(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """Boxes [..., 4] of a picture of this size as this view shows it, and back."""
        return box_ops.flip(boxes, size[1]) if self.flip else boxes


class AugmentedDetector:
    """`DetectionModel.detect` over several views of each picture.

    Args:
        model: a detector in evaluation mode.
        views: at least one.
        keypoint_names: of a model with a keypoint head: "left_..." and "right_..." change places
            in a mirrored view.

    Raises:
        ConfigError: a view is mirrored, and the model's keypoints have no names; or the model is an
            exported program, which has no parts.
    """

    def __init__(
        self, model: DetectionModel, views: Sequence[View], keypoint_names: Sequence[str] = ()
    ) -> None:
        if not hasattr(model, "backbone"):
            raise ConfigError(
                "TEST.BBOX_AUG.ENABLED must be False: an exported program looks at a picture in "
                "one view; say so, export to the format openvino, or load the checkpoint"
            )
        flips = any(view.flip for view in views)
        if flips and "keypoints" in model.needs and not keypoint_names:
            raise ConfigError(
                "TEST.BBOX_AUG.H_FLIP and SCALE_H_FLIP must be False: left and right keypoints "
                "change places in a mirrored picture, and the checkpoint does not name them"
            )
        self.model = model
        self.views = views
        self.flip_order = flip_order(keypoint_names)

    @torch.no_grad()
    def detect(
        self,
        pictures: Sequence[Tensor],
        proposals: Sequence[Tensor] | None = None,
        min_score: float = 0.0,
    ) -> list[Detections]:
        """Detections of pictures uint8 [3, H, W], each in its own frame, as `DetectionModel.detect`."""
        given = [None] * len(pictures) if proposals is None else proposals
        with varying_shapes():
            return [self._detect(*pair, min_score) for pair in zip(pictures, given, strict=True)]

    def _detect(self, picture: Tensor, given: Tensor | None, min_score: float) -> Detections:
        model, convention, postprocess = self.model, self.model.convention, self.model.postprocess
        size, sizes, predicted, seen = size_of(picture), [], [], []
        for view in self.views:
            image = resize_shortest(picture, view.min_size, view.max_size, convention.resize)
            net_size = size_of(image)
            proposals = None
            if given is not None:
                moved = box_ops.rescale(given, size, net_size, convention)
                proposals = [view.mirror(moved, net_size)]
            images, own = model.prepare([image.flip(-1) if view.flip else image], proposals)
            sizes.append(images.sizes)
            features = model.backbone(images.pixels)
            found = postprocess.usable(model.predict_boxes(features, images, own), images.sizes)
            boxes = view.mirror(found.boxes, net_size)
            clip = postprocess.clip == "before-nms"
            boxes = box_ops.rescale(boxes, images.sizes, sizes[0], convention, clip)
            predicted.append(replace(found, boxes=boxes))
            if model.needs:  # maps are the memory of a view
                seen.append((view, features, net_size))
        joined = tree_map(lambda *views: torch.cat(views, dim=1), *predicted)
        detections = postprocess.suppress(joined, len(self.views))
        detections = postprocess.finish(detections, sizes[0], min_score)
        boxes = box_ops.rescale(detections.boxes, sizes[0], size, convention)
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
            boxes = box_ops.rescale(detections.boxes, size, net_size, self.model.convention)
            boxes = view.mirror(boxes, net_size)
            own = self.model.roi_heads.maps(features, rows, boxes, detections.labels)
            for name, value in own.items():
                if view.flip:
                    value = value.flip(-1)
                    value = value[:, self.flip_order] if name == "keypoint_logits" else value
                maps[name] = maps.get(name, 0) + value / len(self.views)
        return self.model.roi_heads.with_maps(detections, rows, maps)


def size_of(image: Tensor) -> tuple[int, int]:
    """(height, width) of an image [..., H, W]."""
    return image.shape[-2], image.shape[-1]


def build_views(cfg: CfgNode) -> list[View]:
    """The views that TEST.BBOX_AUG asks for, that of plain evaluation first; none if it is off."""
    augmentation = cfg.TEST.BBOX_AUG
    if not augmentation.ENABLED:
        return []
    sizes = [(cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.MAX_SIZE_TEST, augmentation.H_FLIP)]
    for scale in augmentation.SCALES:
        sizes.append((scale, augmentation.MAX_SIZE, augmentation.SCALE_H_FLIP))
    return [
        View(min_size, max_size, flip)
        for min_size, max_size, both in sizes
        for flip in ((False, True) if both else (False,))
    ]
