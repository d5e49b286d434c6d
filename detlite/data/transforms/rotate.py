"""Rotate images with their targets."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from detlite.data.datasets.coco import Target
from detlite.structures.masks.editing import warp_masks

from .targets import BOX_FIELDS, Color, crop_target, move_own_fields


@dataclass(frozen=True)
class RandomRotation:
    """Rotates counterclockwise about the center by a random angle.

    An image keeps its size, and `fill` is the color of empty corners. A box follows the mask of its
    object. Without masks it encloses the rotated ellipse in the box, which fits objects better than
    the rotated corners (Kalra et al., arXiv 2109.13488). An ignored region encloses its rotated
    corners, as it must cover its object.

    Attributes:
        degrees: maximum angle in both directions.
        keypoint_offset: added to keypoints for continuous coordinates.
    """

    degrees: float
    fill: Color
    keypoint_offset: float = 0.0

    def __call__(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        return self.rotate(image, target, self.degrees * (2 * float(torch.rand(())) - 1))

    def rotate(self, image: Tensor, target: Target, angle: float) -> tuple[Tensor, Target]:
        """Rotate an image [C, H, W] and its target by an angle in degrees."""
        height, width = size = image.shape[1], image.shape[2]
        radians = math.radians(angle)
        cos, sin = round(math.cos(radians), 12), round(math.sin(radians), 12)
        rotation = np.array([[cos, sin], [-sin, cos]])
        center = np.array([width, height]) / 2
        shift = center - rotation @ center
        image = _rotate_pixels(image, radians, self.fill)
        matrix = np.column_stack([rotation, shift]).tolist()
        target = dict(move_own_fields(target, matrix))
        for name in target.keys() & BOX_FIELDS:
            target[name] = _rotate_boxes(target[name], rotation, shift, name == "ignored_boxes")
        if "masks" in target:
            masks = target["masks"]
            target["masks"], target["boxes"] = warp_masks(masks, rotation, shift, size, size)
        if "keypoints" in target:
            keypoints, offset = target["keypoints"].clone(), self.keypoint_offset
            rotated = (keypoints[..., :2] + offset) @ torch.from_numpy(rotation.T).float()
            keypoints[..., :2] = rotated + torch.from_numpy(shift).float() - offset
            target["keypoints"] = keypoints
        return image, crop_target(target, 0, 0, height, width)


def _rotate_boxes(boxes: Tensor, rotation: np.ndarray, shift: np.ndarray, corners: bool) -> Tensor:
    """Enclose the rotated corners of boxes, or the rotated ellipses in them."""
    matrix = torch.from_numpy(rotation).to(boxes)
    centers = (boxes[:, :2] + boxes[:, 2:]) / 2 @ matrix.T + torch.from_numpy(shift).to(boxes)
    sides = boxes[:, 2:] - boxes[:, :2]
    # The extent of the rotated shape along each axis.
    ellipse = (sides.square() @ matrix.square().T).sqrt()
    half_sides = (sides @ matrix.abs().T if corners else ellipse) / 2
    return torch.cat([centers - half_sides, centers + half_sides], dim=1)


def _rotate_pixels(image: Tensor, radians: float, fill: Color) -> Tensor:
    height, width = image.shape[1:]
    cos, sin = math.cos(radians), math.sin(radians)
    x, y = width / 2, height / 2
    # Pillow maps pixels of the result to the source.
    inverse = (cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y)
    scale = 255 if image.is_floating_point() else 1
    rotated = [
        np.asarray(
            Image.fromarray(channel.numpy()).transform(
                (width, height),
                Image.Transform.AFFINE,
                inverse,
                Image.Resampling.BILINEAR,
                fillcolor=value / scale if scale > 1 else round(value),
            )
        )
        for channel, value in zip(image, fill, strict=True)
    ]
    return torch.from_numpy(np.stack(rotated))
