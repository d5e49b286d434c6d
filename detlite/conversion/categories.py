"""What the labels of published models mean: COCO's and PASCAL VOC's categories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchvision.models.detection import (
    KeypointRCNN_ResNet50_FPN_Weights,
    MaskRCNN_ResNet50_FPN_Weights,
)

from detlite.data.datasets.pascal_voc import CATEGORIES as VOC

# Of COCO by id, after the background; its 80 categories leave gaps, which are called "N/A".
_NAMES = MaskRCNN_ResNet50_FPN_Weights.COCO_V1.meta["categories"][1:]
_KEYPOINTS = KeypointRCNN_ResNet50_FPN_Weights.COCO_V1.meta["keypoint_names"]


def categories_for(num_classes: int, keypoints: bool = False) -> list[dict[str, Any]]:
    """What the labels of published weights most likely mean.

    Args:
        num_classes: classes with background. 81 are COCO's categories; 91 its ids, where those of
            the gaps are called "N/A", as torchvision counts them; 21 are PASCAL VOC's; of others
            nothing is known.
        keypoints: the model predicts keypoints: its one category is the person.

    Returns:
        `num_classes - 1` categories {"id", "name"}; label k is the k-th. The person of a keypoint
        model also has the names of its "keypoints".
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


def categories_by_name(names: Sequence[str]) -> list[dict[str, Any]]:
    """Categories {"id", "name"} of the labels 1, 2, ... that a file names.

    Their ids are COCO's where all are categories of COCO, else the labels.
    """
    of_coco = set(names) <= set(_NAMES) - {"N/A"} and len(set(names)) == len(names)
    ids = [_NAMES.index(name) + 1 if of_coco else label for label, name in enumerate(names, 1)]
    return [{"id": number, "name": name} for number, name in zip(ids, names, strict=True)]
