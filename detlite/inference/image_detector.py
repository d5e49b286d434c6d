"""Base class of detectors that resize images themselves, and call a model several times."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from detlite.data.transforms.resize import resize_shortest, size_of
from detlite.modeling.detection_model import DetectionModel
from detlite.structures.instances import Detections

from .options import View


class ImageDetector:
    """Base class of detectors for original images; implements `Detector`.

    Subclasses override `detect`, or `_detect` for one image at a time. `model` is in evaluation
    mode and may be exported.
    """

    resizes_images = True

    def __init__(self, model: DetectionModel) -> None:
        self.model = model
        self.channels, self.takes_proposals = model.channels, model.takes_proposals
        self.convention, self.mask_threshold = model.convention, model.mask_threshold

    @property
    def categories(self) -> list[dict[str, Any]]:
        return self.model.categories

    @property
    def device(self) -> torch.device:
        return self.model.device

    @torch.no_grad()
    def detect(
        self,
        images: Sequence[Tensor],
        proposals: Sequence[Tensor | None] | None = None,
        min_score: float = 0.0,
    ) -> list[Detections]:
        """Return the detections of each image uint8 [C, H, W], see `Detector.detect`."""
        boxes = [None] * len(images) if proposals is None else proposals
        return [self._detect(*pair, min_score) for pair in zip(images, boxes, strict=True)]

    def _detect(self, image: Tensor, proposals: Tensor | None, min_score: float) -> Detections:
        raise NotImplementedError


class ResizingDetector(ImageDetector):
    """Resizes images for a model without proposals, and maps its detections back."""

    def __init__(self, model: DetectionModel, view: View) -> None:
        super().__init__(model)
        self.sizes = view.min_size, view.max_size

    def detect(
        self,
        images: Sequence[Tensor],
        proposals: Sequence[Tensor | None] | None = None,
        min_score: float = 0.0,
    ) -> list[Detections]:
        inputs = [resize_shortest(image, *self.sizes, self.convention.resize) for image in images]
        detections = self.model.detect(inputs, None, min_score)
        return [
            found.rescale(size_of(network_input), size_of(image), self.convention)
            for found, network_input, image in zip(detections, inputs, images, strict=True)
        ]
