"""Select and concatenate the objects of targets."""

from collections.abc import Sequence

import torch
from torch import Tensor

from detlite.data.datasets.coco import Target
from detlite.structures.masks.packed import PackedMasks

_OBJECT_TENSORS = {"boxes", "labels", "keypoints"}  # one row per object
REGION_FIELDS = {"proposals", "ignored_boxes"}  # boxes without a label
BOX_FIELDS = {"boxes", *REGION_FIELDS}


def select_objects(target: Target, keep: Tensor) -> Target:
    """Return a target with the objects for which `keep`, bool [N], is True."""
    if keep.all():
        return target
    kept = {name: target[name][keep] for name in target.keys() & _OBJECT_TENSORS}
    if "masks" in target:
        kept["masks"] = target["masks"].select(keep)
    return {**target, **kept}


def concat_targets(targets: Sequence[Target]) -> Target:
    """Return a target with the objects of several; other entries are those of the first."""
    first = targets[0]
    joined: Target = {
        name: torch.cat([target[name] for target in targets])
        for name in first.keys() & (_OBJECT_TENSORS | REGION_FIELDS)
    }
    if "masks" in first:
        joined["masks"] = PackedMasks.join([target["masks"] for target in targets])
    return {**first, **joined}
