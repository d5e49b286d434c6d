"""Categories of published models: those of COCO and PASCAL VOC."""

from collections.abc import Sequence
from typing import Any

from torchvision.models.detection import (
    KeypointRCNN_ResNet50_FPN_Weights,
    MaskRCNN_ResNet50_FPN_Weights,
)

from detlite.data.datasets.voc import CATEGORIES as VOC

# By COCO id from 1; the ids that COCO does not use have the name "N/A".
_NAMES = MaskRCNN_ResNet50_FPN_Weights.COCO_V1.meta["categories"][1:]
_KEYPOINTS = KeypointRCNN_ResNet50_FPN_Weights.COCO_V1.meta["keypoint_names"]


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
    ids = [{"id": number, "name": name} for number, name in enumerate(_NAMES, start=1)]
    if num_classes == 91:
        return ids
    if num_classes == 81:
        return [category for category in ids if category["name"] != "N/A"]
    if num_classes == len(VOC) + 1:
        return [{"id": label, "name": name} for label, name in enumerate(VOC, start=1)]
    if num_classes == 2 and keypoints:
        return [{**ids[0], "keypoints": _KEYPOINTS}]
    return [{"id": label, "name": f"class {label}"} for label in range(1, num_classes)]


def categories_from_names(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return categories {"id", "name"} of the labels 1, 2, ... from their names.

    The ids are COCO's if all names are categories of COCO, or else the labels.
    """
    of_coco = set(names) <= set(_NAMES) - {"N/A"} and len(set(names)) == len(names)
    ids = [_NAMES.index(name) + 1 if of_coco else label for label, name in enumerate(names, 1)]
    return [{"id": number, "name": name} for number, name in zip(ids, names, strict=True)]
