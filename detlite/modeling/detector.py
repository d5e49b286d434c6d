"""The interface of everything that detects objects: models, test-time augmentation, tiling."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from detlite.conventions import Convention
from detlite.structures.instances import Detections


class Detector(Protocol):
    """Detects objects in images.

    `DetectionModel` implements it, and so do its optimized and exported forms and the wrappers
    that call a model several times for one image. Evaluation and `Predictor` need nothing else.
    """

    @property
    def categories(self) -> list[dict[str, Any]]:
        """Categories {"id", "name"} of the dataset; label k is `categories[k - 1]`."""

    @property
    def channels(self) -> int:
        """Number of channels of images; 3: RGB."""

    @property
    def device(self) -> torch.device:
        """Device that computes; images may be on any device."""

    @property
    def convention(self) -> Convention:
        """Rules by which images are resized, and boxes and masks are mapped back."""

    @property
    def mask_threshold(self) -> float:
        """Lowest probability of a pixel inside a mask."""

    @property
    def takes_proposals(self) -> bool:
        """True if `detect` needs proposals for each image."""

    @property
    def resizes_images(self) -> bool:
        """True if `detect` resizes images; otherwise, the caller must resize them."""

    def detect(
        self,
        images: Sequence[Tensor],
        proposals: Sequence[Tensor | None] | None = None,
        min_score: float = 0.0,
    ) -> list[Detections]:
        """Return the detections of each image, in pixels of that image.

        Args:
            images: tensors [C, H, W], uint8 in 0..255 or float in 0..1, of any sizes.
            proposals: xyxy boxes [P, 4] of each image, only for a detector that needs them.
            min_score: detections with a lower score are dropped.
        """


def unwrap(model: Any) -> Any:
    """Return the module inside DataParallel, AveragedModel, torch.compile and their like."""
    while inner := {"module", "_orig_mod"} & getattr(model, "_modules", {}).keys():
        model = getattr(model, inner.pop())
    return model
