"""What the labels of published models mean: COCO's and PASCAL VOC's categories."""

from __future__ import annotations

from typing import Any

from ..data.pascal_voc import CATEGORIES as VOC

# Of COCO (https://cocodataset.org) by id; its 80 categories leave gaps.
_NAMES = """\
person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light,
fire hydrant, , stop sign, parking meter, bench, bird, cat, dog, horse, sheep,
cow, elephant, bear, zebra, giraffe, , backpack, umbrella, , ,
handbag, tie, suitcase, frisbee, skis, snowboard, sports ball, kite, baseball bat, baseball glove,
skateboard, surfboard, tennis racket, bottle, , wine glass, cup, fork, knife, spoon,
bowl, banana, apple, sandwich, orange, broccoli, carrot, hot dog, pizza, donut,
cake, chair, couch, potted plant, bed, , dining table, , , toilet,
, tv, laptop, mouse, remote, keyboard, cell phone, microwave, oven, toaster,
sink, refrigerator, , book, clock, vase, scissors, teddy bear, hair drier, toothbrush"""

_SIDED = ("eye", "ear", "shoulder", "elbow", "wrist", "hip", "knee", "ankle")
_KEYPOINTS = ["nose", *(f"{side}_{part}" for part in _SIDED for side in ("left", "right"))]


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
    names = [name.strip() for name in _NAMES.split(",")]
    ids = [{"id": number, "name": name} for number, name in enumerate(names, start=1)]
    if num_classes == 91:
        return [{**category, "name": category["name"] or "N/A"} for category in ids]
    if num_classes == 81:
        return [category for category in ids if category["name"]]
    if num_classes == len(VOC) + 1:
        return [{"id": label, "name": name} for label, name in enumerate(VOC, start=1)]
    if num_classes == 2 and keypoints:
        return [{**ids[0], "keypoints": _KEYPOINTS}]
    return [{"id": label, "name": f"class {label}"} for label in range(1, num_classes)]
