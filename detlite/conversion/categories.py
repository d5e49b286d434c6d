"""Categories of published models: those of COCO and PASCAL VOC."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from detlite.data.datasets.voc import CATEGORIES as VOC


@cache
def _coco_names() -> tuple[list[str], list[str]]:
    """Return the categories by COCO id from 1 ("N/A" for unused ids), and the keypoints."""
    from torchvision.models import detection  # late, because it takes seconds

    masks, keypoints = (
        detection.MaskRCNN_ResNet50_FPN_Weights,
        detection.KeypointRCNN_ResNet50_FPN_Weights,
    )
    return masks.COCO_V1.meta["categories"][1:], keypoints.COCO_V1.meta["keypoint_names"]


def guess_categories(num_classes: int, keypoints: bool = False) -> list[dict[str, Any]]:
    """Guess the categories of a model from its number of classes.

    Args:
        num_classes: number of classes with background. 81: COCO's categories; 91: COCO's ids with
            "N/A" for unused ids, as in torchvision; 21: PASCAL VOC's categories; otherwise the
            categories are called "class 1", "class 2", ...
        keypoints: the model predicts keypoints, so that a single category is COCO's person, with
            the names of its "keypoints".

    Returns:
        `num_classes - 1` categories {"id", "name"}, in order of the labels 1, 2, ....
    """
    names, keypoint_names = _coco_names()
    ids = [{"id": number, "name": name} for number, name in enumerate(names, start=1)]
    if num_classes == 91:
        return ids
    if num_classes == 81:
        return [category for category in ids if category["name"] != "N/A"]
    if num_classes == len(VOC) + 1:
        return [{"id": label, "name": name} for label, name in enumerate(VOC, start=1)]
    if num_classes == 2 and keypoints:
        return [{**ids[0], "keypoints": keypoint_names}]
    return [{"id": label, "name": f"class {label}"} for label in range(1, num_classes)]


def categories_from_names(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return categories {"id", "name"} of the labels 1, 2, ... from their names.

    The ids are COCO's if all names are categories of COCO, or else the labels.
    """
    coco, _ = _coco_names()
    of_coco = set(names) <= set(coco) - {"N/A"} and len(set(names)) == len(names)
    ids = [coco.index(name) + 1 if of_coco else label for label, name in enumerate(names, 1)]
    return [{"id": number, "name": name} for number, name in zip(ids, names, strict=True)]
