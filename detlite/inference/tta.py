"""Test-time augmentation: one set of detections from several views of an image.

As in Detectron, the scored boxes of all views are mapped to the first view and suppressed together.
Then the mask and keypoint heads predict the remaining boxes in each view again, and their maps are
averaged.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from detlite.config import ConfigError
from detlite.data.transforms.resize import resize_shortest, size_of
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.roi_heads.roi_heads import HeadOutputs
from detlite.structures import boxes as box_ops
from detlite.structures.instances import Detections
from detlite.structures.keypoints import flip_order
from detlite.structures.object_fields import move_fields, resizing
from detlite.structures.padding import RowPacking

from .image_detector import ImageDetector
from .options import View


class AugmentedDetector(ImageDetector):
    """Detects objects in several views of each image.

    Keypoints named "left_..." and "right_..." are exchanged in a mirrored view.
    """

    def __init__(
        self, model: DetectionModel, views: Sequence[View], keypoint_names: Sequence[str] = ()
    ) -> None:
        if not hasattr(model, "backbone"):
            raise ConfigError(
                "TEST.BBOX_AUG.ENABLED must be False for an exported program, which accepts "
                "one view only: set it to False, export to openvino, or load the checkpoint"
            )
        flips = any(view.flip for view in views)
        if flips and "keypoints" in model.required_targets and not keypoint_names:
            raise ConfigError(
                "TEST.BBOX_AUG.H_FLIP and SCALE_H_FLIP must be False: left and right keypoints "
                "change places in a mirrored image, but the checkpoint does not name them"
            )
        super().__init__(model)
        self.views = views
        self.flip_order = flip_order(keypoint_names)

    def _detect(self, image: Tensor, proposals: Tensor | None, min_score: float) -> Detections:
        model, convention, postprocess = self.model, self.model.convention, self.model.postprocess
        size, sizes, predicted, features_by_view = size_of(image), [], [], []
        keep_features = hasattr(model, "roi_heads") and bool(model.roi_heads.predicted)
        first_size: tuple[int, int] | None = None
        for view in self.views:
            resized = resize_shortest(image, view.min_size, view.max_size, convention.resize)
            input_size = size_of(resized)
            view_proposals = None
            if proposals is not None:
                rescaled = box_ops.rescale(proposals, size, input_size, convention)
                view_proposals = [view.mirror(rescaled, input_size)]
            network_input = resized.flip(-1) if view.flip else resized
            batch, padded_proposals = model.prepare([network_input], view_proposals)
            sizes.append(batch.sizes)
            features = model.backbone(batch.pixels)
            scored = model.predict_boxes(features, batch, padded_proposals)
            scored = postprocess.select(scored, batch.sizes)
            boxes = view.mirror(scored.boxes, input_size)
            clip = postprocess.clip == "before-nms"
            boxes = box_ops.rescale(boxes, batch.sizes, sizes[0], convention, clip)
            first_size = first_size or input_size
            own = move_fields(scored.extra_fields, resizing(input_size, first_size, view.flip))
            predicted.append(replace(scored, boxes=boxes, extra_fields=own))
            if keep_features:  # keep the features, which take memory, only for the heads
                features_by_view.append((view, features, input_size))
        joined = tree_map(lambda *views: torch.cat(views, dim=1), *predicted)
        detections = postprocess.suppress(joined, False, len(self.views))
        detections = postprocess.finish(detections, sizes[0], False, min_score)
        assert first_size is not None
        detections = detections.rescale(first_size, size, convention)
        if keep_features:
            detections = self._add_fields(detections, features_by_view, size)
        return detections.per_image()[0]

    def _add_fields(
        self,
        detections: Detections,
        features_by_view: Sequence[tuple[View, list[Tensor], tuple[int, int]]],
        size: tuple[int, int],
    ) -> Detections:
        """Add the mean of the heads' outputs over all views to the detections [1, D]."""
        packing, mean = RowPacking(detections.valid, static_shapes=False), HeadOutputs()
        heads = self.model.roi_heads
        for view, features, input_size in features_by_view:
            boxes = box_ops.rescale(detections.boxes, size, input_size, self.model.convention)
            boxes = view.mirror(boxes, input_size)
            outputs = heads.head_outputs(features, packing, boxes, detections.labels)
            if view.flip:
                outputs = heads.unmirrored(outputs, self.flip_order)
            for name, value in outputs.items():
                mean[name] = mean.get(name, 0) + value / len(self.views)
        return heads.with_head_outputs(detections, packing, mean)
