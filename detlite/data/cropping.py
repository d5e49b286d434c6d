"""Random crops of images with their targets, padded where the image is smaller."""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.ops import clip_boxes_to_image

from ..structures import boxes as box_ops
from ..structures.mask_editing import cut_masks, visible_boxes
from .coco import Target


class RandomCrop:
    """Cuts a square out of an image at a random place, and pads below and to the right.

    Args:
        side: of the square, in pixels.
        fill: what is padded with, RGB in 0..255.
    """

    def __init__(self, side: int, fill: tuple[float, float, float]) -> None:
        self.side = side
        self._fill = torch.tensor(fill)

    def __call__(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        """An image [3, H, W], uint8 or float in 0..1, and its target as `crop_target` has them."""
        top, left = (
            int(torch.randint(max(length - self.side, 0) + 1, ())) for length in image.shape[1:]
        )
        part = image[:, top : top + self.side, left : left + self.side]
        if part.shape[1:] == (self.side, self.side):
            return part.contiguous(), crop_target(target, top, left, self.side, self.side)
        fill = self._fill / 255 if image.is_floating_point() else self._fill.round()
        square = fill.to(image.dtype)[:, None, None].repeat(1, self.side, self.side)
        square[:, : part.shape[1], : part.shape[2]] = part
        return square, crop_target(target, top, left, self.side, self.side)


def crop_target(target: Target, top: int, left: int, height: int, width: int) -> Target:
    """What of a target is seen in a window of its image, of which it may reach out.

    Objects that the window cuts get the box around what is left of their masks, where they have
    masks; objects of which less than a pixel in height or width is left are dropped. Keypoints
    outside become unlabelled. Proposals are clipped.

    Args:
        target: as `DetectionTransform` gives it.
        top, left, height, width: the window, in pixels of the image.
    """
    target = dict(target)
    size = (height, width)
    shift = torch.tensor([left, top, left, top])
    moved = target["boxes"] - shift
    boxes = clip_boxes_to_image(moved, size)
    if "masks" in target:
        target["masks"] = cut_masks(target["masks"], top, left, height, width)
        cut = (boxes != moved).any(dim=1) & box_ops.at_least(boxes, 0)
        seen = visible_boxes(target["masks"].select(cut), height, width)
        boxes[cut] = box_ops.intersect(boxes[cut], seen)
    target["boxes"] = boxes
    if "keypoints" in target:
        x, y, visibility = (target["keypoints"] - torch.tensor([left, top, 0])).unbind(-1)
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        target["keypoints"] = torch.stack([x, y, visibility * inside], dim=-1)
    if "proposals" in target:
        proposals = clip_boxes_to_image(target["proposals"] - shift, size)
        target["proposals"] = proposals[box_ops.at_least(proposals, 1)]
    return keep_objects(target, box_ops.at_least(target["boxes"], 1))


def keep_objects(target: Target, keep: Tensor) -> Target:
    """A target with some of its N objects alone: `keep` is bool [N]."""
    if keep.all():
        return target
    kept = {name: target[name][keep] for name in target.keys() & {"boxes", "labels", "keypoints"}}
    if "masks" in target:
        kept["masks"] = target["masks"].select(keep)
    return {**target, **kept}
