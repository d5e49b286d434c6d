"""Paste objects of one training image into another (Simple Copy-Paste, arXiv 2012.07177)."""

import numpy as np
import torch
from torch import Tensor

from detlite.data.datasets.coco import Target
from detlite.structures import boxes as box_ops
from detlite.structures.masks.editing import masks_to_boxes, occlude_masks, place_masks
from detlite.structures.masks.packed import PackedMasks
from detlite.structures.masks.rle import used_columns

from .targets import REGION_FIELDS, crop_target, object_tensors, select_objects

HIDDEN = 1  # COCO's visibility of a keypoint that is labeled but not visible


def paste_objects(
    image: Tensor, target: Target, source: Tensor, source_target: Target
) -> tuple[Tensor, Target]:
    """Paste the objects of a second image over the first one, at the same coordinates.

    Pasted objects are cut at the border of the image. The masks of covered objects lose the covered
    pixels, and their boxes shrink; objects with less than a pixel in height or width are dropped.
    Covered keypoints become hidden. The images [C, H, W] may differ in size.
    """
    whole = image.shape[1], image.shape[2]
    height, width = size = min(whole[0], source.shape[1]), min(whole[1], source.shape[2])
    pasted = crop_target(source_target, 0, 0, *size)
    pasted = {**pasted, "masks": place_masks(pasted["masks"], size, whole)}
    if "ignored_boxes" in pasted:  # of objects that are not pasted
        pasted["ignored_boxes"] = pasted["ignored_boxes"][:0]
    union = np.zeros(whole, bool)
    for bitmap in pasted["masks"].each_bitmap(*whole):
        columns = used_columns(bitmap)
        union[:, columns] |= bitmap[:, columns] > 0
    covered = torch.from_numpy(union)
    image, common = image.clone(), covered[:height, :width]
    image[:, :height, :width][:, common] = source[:, :height, :width][:, common]
    rest = _cover_target(target, covered)
    joined: Target = {
        name: torch.cat([rest[name], pasted[name]])
        for name in object_tensors(rest) | (rest.keys() & REGION_FIELDS)
    }
    return image, {**rest, **joined, "masks": PackedMasks.join([rest["masks"], pasted["masks"]])}


def choose_objects(target: Target) -> Target:
    """Return a target that contains each object with probability 0.5."""
    return select_objects(target, torch.rand(len(target["boxes"])) < 0.5)


def _cover_target(target: Target, covered: Tensor) -> Target:
    """Return the target of an image whose pixels `covered`, bool [H, W], are hidden."""
    masks, changed = occlude_masks(target["masks"], covered.numpy())
    boxes = target["boxes"].clone()
    visible = masks_to_boxes(masks.select(changed), *covered.shape)
    boxes[changed] = box_ops.intersection(boxes[changed], visible)
    target = {**target, "boxes": boxes, "masks": masks}
    if "keypoints" in target:
        keypoints = target["keypoints"].clone()
        column, row = keypoints[..., 0].long(), keypoints[..., 1].long()
        height, width = covered.shape
        hidden = covered[row.clamp(0, height - 1), column.clamp(0, width - 1)]
        keypoints[..., 2] = keypoints[..., 2].where(~hidden, keypoints[..., 2].clamp(max=HIDDEN))
        target["keypoints"] = keypoints
    return select_objects(target, box_ops.has_min_size(boxes, 1))
