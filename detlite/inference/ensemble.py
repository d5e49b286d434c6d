"""Merge the detections of several models, such as those of the folds of a cross-validation."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from detlite.config import ConfigError
from detlite.modeling.boxes.suppression import suppress
from detlite.structures.instances import Detections

from .image_detector import ImageDetector


class EnsembleDetector(ImageDetector):
    """Detects objects with several detectors, and merges the detections of each image.

    All boxes are suppressed together, with the overlap of the first model's NMS. A remaining box is
    the mean of its neighbors, weighted by score ("voting", see `Suppression`). Its score, mask,
    keypoints and own fields are those of the detection with the highest score.

    Raises:
        ConfigError: the models have other categories, heads, channels or conventions.
    """

    def __init__(self, detectors: Sequence[ImageDetector]) -> None:
        super().__init__(detectors[0].model)
        self.detectors = detectors
        for number, detector in enumerate(detectors[1:], start=2):
            for name in ("categories", "channels", "convention", "mask_threshold"):
                own, first = getattr(detector, name), getattr(self, name)
                if own != first:
                    raise ConfigError(
                        f"the {name} of model {number} and of the first one differ ({own}, "
                        f"{first}): only models of the same task and framework can be merged"
                    )

    def _detect(self, image: Tensor, proposals: Tensor | None, min_score: float) -> Detections:
        found = [detector.detect([image], None, min_score)[0] for detector in self.detectors]
        shapes = [{n: x.shape[1:] for n, x in one.named_fields().items()} for one in found]
        if shapes.count(shapes[0]) < len(shapes):
            raise ConfigError(
                f"the models have other heads ({shapes}): only models with the same outputs can be "
                "merged"
            )
        joined = tree_map(lambda *fields: torch.cat(fields)[None], *found)
        if joined.mask_probs is not None:  # masks stay where they were predicted
            joined = replace(joined, mask_boxes=joined.pasting_boxes)
        postprocess = self.model.postprocess
        settings = replace(postprocess.suppression, method="voting")
        limit = max(postprocess.detections_per_image, *(len(one.scores) for one in found))
        return suppress(joined, settings, limit, static_shapes=False).per_image()[0]
