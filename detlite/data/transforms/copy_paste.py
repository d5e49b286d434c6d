"""Objects of one training image pasted into another (Simple Copy-Paste, arXiv 2012.07177)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from detlite.data.datasets.coco import Target
from detlite.structures import boxes as box_ops
from detlite.structures.masks.editing import hide_masks, visible_boxes
from detlite.structures.masks.rle import used_columns

from .crop import crop_target, join_targets, keep_objects

HIDDEN = 1  # COCO's visibility of a keypoint that is labelled, but not to be seen


def paste_objects(
    image: Tensor, target: Target, source: Tensor, source_target: Target
) -> tuple[Tensor, Target]:
    """Pastes the objects of a second image, at their places, over the first one.

    What reaches out of the first image is cut off. Objects below lose the pixels that are
    covered, and get the box around what is left; those of which less than a pixel in height or
    width is left are dropped. Their covered keypoints become hidden ones. Edges are not blended,
    which the paper finds to make no difference.

    Args:
        image: [3, H, W], in which is pasted.
        target: its `boxes`, `labels`, `masks` and perhaps `keypoints`; what else it has stays.
        source: [3, h, w] of the same type.
        source_target: the same, of the objects to paste.

    Returns:
        The image, and a target with the objects of both, those of the first in front.
    """
    height, width = image.shape[1:]
    pasted = crop_target(source_target, 0, 0, height, width)
    union = np.zeros((height, width), bool)
    for bitmap in pasted["masks"].each_bitmap(height, width):
        used = used_columns(bitmap)
        union[:, used] |= bitmap[:, used] > 0
    covered = torch.from_numpy(union)
    image = image.clone()
    # What is pasted lies in both images.
    height, width = min(height, source.shape[1]), min(width, source.shape[2])
    seen = covered[:height, :width]
    image[:, :height, :width][:, seen] = source[:, :height, :width][:, seen]
    return image, join_targets([_covered_target(target, covered), pasted])


def choose_objects(target: Target) -> Target:
    """A target with each of its objects or without it, by the toss of a coin."""
    return keep_objects(target, torch.rand(len(target["boxes"])) < 0.5)


def _covered_target(target: Target, covered: Tensor) -> Target:
    """The target of an image of which the pixels `covered`, bool [H, W], are hidden."""
    masks, touched = hide_masks(target["masks"], covered.numpy())
    boxes = target["boxes"].clone()
    boxes[touched] = box_ops.intersection(
        boxes[touched], visible_boxes(masks.select(touched), *covered.shape)
    )
    target = {**target, "boxes": boxes, "masks": masks}
    if "keypoints" in target:
        keypoints = target["keypoints"].clone()
        column, row = keypoints[..., 0].long(), keypoints[..., 1].long()
        height, width = covered.shape
        under = covered[row.clamp(0, height - 1), column.clamp(0, width - 1)]
        keypoints[..., 2] = keypoints[..., 2].where(~under, keypoints[..., 2].clamp(max=HIDDEN))
        target["keypoints"] = keypoints
    return keep_objects(target, box_ops.has_min_size(boxes, 1))
