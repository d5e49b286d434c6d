"""Windows of images with their targets, padded where the image is smaller: random crops."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchvision.ops import clip_boxes_to_image

from detlite.data.datasets.coco import Target
from detlite.structures import boxes as box_ops
from detlite.structures.masks.editing import cut_masks, visible_boxes
from detlite.structures.masks.packed import PackedMasks

Colour = tuple[float, float, float]  # RGB in 0..255

_OF_OBJECTS = {"boxes", "labels", "keypoints"}  # with a row for each; masks are no tensor


class RandomCrop:
    """Cuts a square out of an image at a random place, and pads below and to the right.

    Args:
        side: of the square, in pixels.
        fill: what is padded with.
    """

    def __init__(self, side: int, fill: Colour) -> None:
        self.side = side
        self._fill = fill

    def __call__(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        """An image [3, H, W], uint8 or float in 0..1, and its target as `crop_target` has them."""
        top, left = (random_start(length, self.side) for length in image.shape[1:])
        window = (top, left, self.side, self.side)
        return crop_image(image, *window, self._fill), crop_target(target, *window)


def random_start(length: int, size: int) -> int:
    """Where a random window of that size begins along a side; at 0 in a side that is shorter."""
    return int(torch.randint(max(length - size, 0) + 1, ()))


def crop_image(image: Tensor, top: int, left: int, height: int, width: int, fill: Colour) -> Tensor:
    """A window of an image, padded with a colour where it reaches out.

    Args:
        image: [3, H, W], uint8 or float in 0..1.
        top, left, height, width: the window, in pixels of the image; it touches the image.
        fill: the colour.
    """
    part = image[:, max(top, 0) : top + height, max(left, 0) : left + width]
    if part.shape[1:] == (height, width):
        return part.contiguous()
    colour = torch.tensor(fill)
    colour = colour / 255 if image.is_floating_point() else colour.round()
    window = colour.to(image.dtype)[:, None, None].repeat(1, height, width)
    y, x = max(-top, 0), max(-left, 0)
    window[:, y : y + part.shape[1], x : x + part.shape[2]] = part
    return window


def crop_target(target: Target, top: int, left: int, height: int, width: int) -> Target:
    """What of a target is seen in a window of its image, of which it may reach out.

    Objects that the window cuts get the box around what is left of their masks, where they have
    masks; objects of which less than a pixel in height or width is left are dropped. Keypoints
    outside become unlabelled. Proposals are clipped.

    Args:
        target: as `DetectionTransform` gives it.
        top, left, height, width: the window, in pixels of the image.
    """
    size = (height, width)
    shift = torch.tensor([left, top, left, top])
    outline = clip_boxes_to_image(target["boxes"] - shift, size)
    # Before the masks are cut, of which most may lie outside.
    target = dict(keep_objects(target, box_ops.has_min_size(outline, 1)))
    moved = target["boxes"] - shift
    boxes = clip_boxes_to_image(moved, size)
    if "masks" in target:
        target["masks"] = cut_masks(target["masks"], top, left, height, width)
        cut = (boxes != moved).any(dim=1)
        seen = visible_boxes(target["masks"].select(cut), height, width)
        boxes[cut] = box_ops.intersection(boxes[cut], seen)
    target["boxes"] = boxes
    if "keypoints" in target:
        x, y, visibility = (target["keypoints"] - torch.tensor([left, top, 0])).unbind(-1)
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        target["keypoints"] = torch.stack([x, y, visibility * inside], dim=-1)
    if "proposals" in target:
        proposals = clip_boxes_to_image(target["proposals"] - shift, size)
        target["proposals"] = proposals[box_ops.has_min_size(proposals, 1)]
    return keep_objects(target, box_ops.has_min_size(target["boxes"], 1))


def keep_objects(target: Target, keep: Tensor) -> Target:
    """A target with some of its N objects alone: `keep` is bool [N]."""
    if keep.all():
        return target
    kept = {name: target[name][keep] for name in target.keys() & _OF_OBJECTS}
    if "masks" in target:
        kept["masks"] = target["masks"].select(keep)
    return {**target, **kept}


def join_targets(targets: Sequence[Target]) -> Target:
    """A target with the objects of several in one frame; what else it has is the first one's."""
    first = targets[0]
    joined: Target = {
        name: torch.cat([target[name] for target in targets])
        for name in first.keys() & (_OF_OBJECTS | {"proposals"})
    }
    if "masks" in first:
        joined["masks"] = PackedMasks.join([target["masks"] for target in targets])
    return {**first, **joined}
