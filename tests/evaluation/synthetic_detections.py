"""Random datasets, with detections that have errors of every type."""

import numpy as np
from pycocotools import mask as rle_codec
from pycocotools.coco import COCO

from tests.builders import Row, coco_content, coco_detection, coco_object, make_coco, rectangle

SIDE = 160  # of the images
CATEGORIES = {3: "c3", 7: "c7", 20: "c20"}


def box_rle(box: np.ndarray) -> Row:
    """Return the mask of a box xywh as RLE."""
    rle = rle_codec.frPyObjects(rectangle(*box.tolist()), SIDE, SIDE)[0]
    return {"size": rle["size"], "counts": rle["counts"].decode()}


def synthetic_dataset(
    seed: int, images: int = 12, objects: int = 6, crowds: float = 0.1, noise: float = 1.0
) -> tuple[COCO, list[Row]]:
    """Make objects of all sizes, and detections with errors of every type and distinct scores.

    Args:
        seed: of the random generator.
        images: number of images.
        objects: the highest number of objects in an image; some images have none.
        crowds: the fraction of objects that are crowds.
        noise: scale of the localisation errors.
    """
    rng = np.random.default_rng(seed)
    content = coco_content((), range(2, 5 * images + 2, 5), (SIDE, SIDE), CATEGORIES)
    rows: list[Row] = []

    def detect(image: int, category: int, box: np.ndarray) -> None:
        box = np.concatenate([box[:2], np.maximum(box[2:], 2)]).round(2)
        score, mask = float(rng.random()), box_rle(box)
        rows.append(coco_detection(box.tolist(), score, category, image, segmentation=mask))

    for image in (row["id"] for row in content["images"]):
        for _ in range(int(rng.integers(0, objects + 1))):
            size = np.exp(rng.uniform(np.log(8), np.log(120), 2))
            box = np.concatenate([rng.random(2) * (SIDE - size), size]).round(2)
            category = int(rng.choice(list(CATEGORIES)))
            number = len(content["annotations"]) + 1
            crowd = int(rng.random() < crowds)
            fields = {"id": number, "iscrowd": crowd, "segmentation": box_rle(box)}
            content["annotations"].append(coco_object(box.tolist(), category, image, **fields))
            for _ in range(int(rng.choice(4, p=[0.15, 0.45, 0.25, 0.15]))):
                shift = rng.choice([0.03, 0.12, 0.3]) * noise
                moved = box + rng.normal(size=4) * box[[2, 3, 2, 3]] * shift
                wrong = rng.random() < 0.25
                detect(image, int(rng.choice(list(CATEGORIES))) if wrong else category, moved)
        for _ in range(int(rng.integers(0, 3))):
            size = rng.uniform(5, 60, 2)
            detect(image, int(rng.choice(list(CATEGORIES))),
                   np.concatenate([rng.random(2) * (SIDE - size), size]))  # fmt: skip
    return make_coco(content), rows
