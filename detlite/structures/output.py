"""From the network's input back to the picture: how boxes and masks are mapped."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from . import boxes as box_ops
from .masks import RLE, paste_masks_to_rle, paste_probabilities


@dataclass(frozen=True)
class OutputRules:
    """How a model's detections become those of a picture; sizes are (height, width).

    Attributes:
        mask_threshold: probability from which a pixel belongs to a mask.
        whole_pixels: paste masks into boxes truncated to whole pixels, see `paste_probabilities`.
        inclusive: x2 and y2 count the last pixel inside. The boxes are continuous all the same,
            so a pixel is taken off before they are scaled, and added again afterwards.
        keypoint_centre: where in the pixel of that index a keypoint lies: 0.5, or 0.
    """

    mask_threshold: float = 0.5
    whole_pixels: bool = False
    inclusive: bool = False
    keypoint_centre: float = 0.5

    def boxes(self, boxes: Tensor, net_size: tuple[int, int], size: tuple[int, int]) -> Tensor:
        """Boxes [N, 4] xyxy from the frame of the network's input to that of the picture.

        The two sides are scaled apart: a resize rounds each to a pixel.
        """
        factors = (size[0] / net_size[0], size[1] / net_size[1])
        last_pixel = boxes.new_tensor([0, 0, 1, 1] if self.inclusive else [0, 0, 0, 0])
        scaled = box_ops.scale(boxes - last_pixel, factors) + last_pixel
        # The pixel added keeps its size: at the border it may reach beyond a smaller picture.
        return scaled if self.inclusive else box_ops.clip(scaled, size)

    def keypoints(
        self, keypoints: Tensor, net_size: tuple[int, int], size: tuple[int, int]
    ) -> Tensor:
        """Keypoints [N, P, 3] from the frame of the network's input to that of the picture."""
        height, width = size[0] / net_size[0], size[1] / net_size[1]
        return keypoints * keypoints.new_tensor([width, height, 1])

    def masks(self, probs: Tensor, boxes: Tensor, size: tuple[int, int]) -> list[RLE]:
        """Masks of probabilities [N, M, M] in the picture, for its boxes [N, 4], as RLEs."""
        return paste_masks_to_rle(
            probs, self._mask_frame(boxes), size, self.mask_threshold, self.whole_pixels
        )

    def mask_probs(self, probs: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """The same as probabilities float32 [N, height, width]."""
        return paste_probabilities(probs, self._mask_frame(boxes), size, self.whole_pixels)

    def _mask_frame(self, boxes: Tensor) -> Tensor:
        return box_ops.drop_last_pixel(boxes) if self.inclusive else boxes
