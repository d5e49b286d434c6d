"""Categories of COCO and PASCAL VOC, for published models."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from detlite.data.datasets.builtin_entries import VOC_CATEGORIES as VOC


@cache
def _coco_names() -> tuple[list[str], list[str]]:
    """Return the categories by COCO id from 1 ("N/A" for unused ids), and the keypoints."""
    from torchvision.models import detection  # late, because it takes seconds

    masks = detection.MaskRCNN_ResNet50_FPN_Weights.COCO_V1.meta
    keypoints = detection.KeypointRCNN_ResNet50_FPN_Weights.COCO_V1.meta
    return masks["categories"][1:], keypoints["keypoint_names"]


def guess_categories(num_classes: int, keypoints: bool = False) -> list[dict[str, Any]]:
    """Guess the categories {"id", "name"} of labels 1, 2, ... from the number of classes.

    81 classes, with the background, are COCO's categories; 91 are COCO's ids with "N/A" for unused
    ids, as in torchvision; 21 are PASCAL VOC's categories. A single category of a model with
    keypoints is COCO's person, with the names of its "keypoints". Others are "class 1", ...
    """
    names, keypoint_names = _coco_names()
    ids = [{"id": number, "name": name} for number, name in enumerate(names, start=1)]
    if num_classes == 91:
        return ids
    if num_classes == 81:
        return [category for category in ids if category["name"] != "N/A"]
    if num_classes == 2 and keypoints:
        return [{**ids[0], "keypoints": keypoint_names}]
    others = VOC if num_classes == len(VOC) + 1 else [f"class {n}" for n in range(1, num_classes)]
    return [{"id": label, "name": name} for label, name in enumerate(others, start=1)]


def categories_from_names(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return categories {"id", "name"} of the labels 1, 2, ... from their names.

    The ids are COCO's if all names are categories of COCO, or else the labels.
    """
    coco, _ = _coco_names()
    of_coco = set(names) <= set(coco) - {"N/A"} and len(set(names)) == len(names)
    ids = [coco.index(name) + 1 if of_coco else label for label, name in enumerate(names, 1)]
    return [{"id": number, "name": name} for number, name in zip(ids, names, strict=True)]
