"""Test-time augmentation: one set of detections from several views of a picture.

As in Detectron: the scored boxes of all views are brought into the first one's frame and suppressed
together. Then the mask and keypoint heads look at the boxes that are left in each view again, and
their maps are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from yacs.config import CfgNode

from ..config import ConfigError
from ..data.resize import resize_shortest
from ..modeling.detector import Detector
from ..modeling.suppression import Scored, suppress
from ..structures import boxes as box_ops
from ..structures.keypoints import flip_order


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
        resize: how pictures are resized, INPUT.RESIZE.
        keypoint_names: of a model with a keypoint head: "left_..." and "right_..." change places
            in a mirrored view.

    Raises:
        ConfigError: a view is mirrored, and the model's keypoints have no names.
    """

    def __init__(
        self,
        model: Detector,
        views: Sequence[View],
        resize: str = "round",
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
        self.resize = resize
        self.flip_order = flip_order(keypoint_names)

    @torch.no_grad()
    def detect(
        self, pictures: Sequence[Tensor], proposals: Sequence[Tensor] | None = None
    ) -> list[dict[str, Tensor]]:
        """Detections of pictures uint8 [3, H, W], each in its own frame, as `Detector.detect`."""
        given = [None] * len(pictures) if proposals is None else proposals
        return [self._detect(*pair) for pair in zip(pictures, given, strict=True)]

    def _detect(self, picture: Tensor, proposals: Tensor | None) -> dict[str, Tensor]:
        size = (picture.shape[-2], picture.shape[-1])
        model, seen, candidates = self.model, [], []
        first: tuple[int, int] | None = None
        for view in self.views:
            image = resize_shortest(picture, view.min_size, view.max_size, self.resize)
            net_size = (image.shape[-2], image.shape[-1])
            given = None
            if proposals is not None:
                moved = model.output.boxes(proposals, size, net_size)
                given = [box_ops.mirror(moved, net_size[1]) if view.flip else moved]
            batch = model.batch([image.flip(-1) if view.flip else image], given)
            features = model.backbone(batch.tensor)
            (found,) = model.candidates(features, batch)
            first = first or net_size
            boxes = box_ops.mirror(found["boxes"], net_size[1]) if view.flip else found["boxes"]
            boxes = model.output.boxes(boxes, net_size, first)
            usable = box_ops.at_least(boxes, 0)  # some detectors leave boxes outside the image
            found = {name: value[usable] for name, value in {**found, "boxes": boxes}.items()}
            candidates.append(found)
            if model.needs:  # maps are the memory of a view
                seen.append((view, features, net_size))
        assert first is not None
        detection = suppress(_joined(candidates), model.limits, len(self.views))
        detection["boxes"] = model.output.boxes(detection["boxes"], first, size)
        maps: dict[str, Tensor] = {}
        for view, features, net_size in seen:
            boxes = model.output.boxes(detection["boxes"], size, net_size)
            boxes = box_ops.mirror(boxes, net_size[1]) if view.flip else boxes
            (own,) = model.region_maps(features, [boxes], [detection["labels"]])
            for name, value in own.items():
                value = self._unmirrored(name, value) if view.flip else value
                maps[name] = maps.get(name, 0) + value / len(self.views)
        return model.complete(detection, maps)

    def _unmirrored(self, name: str, maps: Tensor) -> Tensor:
        """The maps [..., M, M] that a box has in the picture, from those of a mirrored view."""
        maps = maps.flip(-1)
        return maps[:, self.flip_order] if name == "keypoint_logits" else maps


def _joined(candidates: Sequence[Scored]) -> Scored:
    return {name: torch.cat([own[name] for own in candidates]) for name in candidates[0]}


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
