"""Random datasets, with detections that have errors of every type."""

from typing import Any

import numpy as np
from pycocotools import mask as rle_codec
from pycocotools.coco import COCO

SIDE = 160  # of the images
CATEGORIES = (3, 7, 20)
Row = dict[str, Any]


def make_coco(content: dict[str, Any]) -> COCO:
    """Return the dataset of the content of an annotation file."""
    coco = COCO()
    coco.dataset = content
    coco.imgs = {row["id"]: row for row in content["images"]}
    coco.cats = {row["id"]: row for row in content["categories"]}
    coco.anns = {row["id"]: row for row in content["annotations"]}
    return coco


def box_rle(box: np.ndarray) -> Row:
    """Return the mask of a box xywh as RLE."""
    x, y, w, h = box.tolist()
    rle = rle_codec.frPyObjects([[x, y, x + w, y, x + w, y + h, x, y + h]], SIDE, SIDE)[0]
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
    content: dict[str, Any] = {
        "images": [
            {"id": 5 * n + 2, "file_name": f"{n}.png", "height": SIDE, "width": SIDE}
            for n in range(images)
        ],
        "categories": [{"id": number, "name": f"c{number}"} for number in CATEGORIES],
        "annotations": [],
    }
    rows: list[Row] = []

    def detect(image: int, category: int, box: np.ndarray) -> None:
        box = np.concatenate([box[:2], np.maximum(box[2:], 2)]).round(2)
        row = {"image_id": image, "category_id": int(category), "bbox": box.tolist()}
        rows.append({**row, "score": float(rng.random()), "segmentation": box_rle(box)})

    for image in (row["id"] for row in content["images"]):
        for _ in range(int(rng.integers(0, objects + 1))):
            size = np.exp(rng.uniform(np.log(8), np.log(120), 2))
            box = np.concatenate([rng.random(2) * (SIDE - size), size]).round(2)
            category = int(rng.choice(CATEGORIES))
            number = len(content["annotations"]) + 1
            content["annotations"].append({
                "id": number, "image_id": image, "category_id": category, "bbox": box.tolist(),
                "iscrowd": int(rng.random() < crowds), "area": float(box[2] * box[3]),
                "segmentation": box_rle(box),
            })  # fmt: skip
            for _ in range(int(rng.choice(4, p=[0.15, 0.45, 0.25, 0.15]))):
                shift = rng.choice([0.03, 0.12, 0.3]) * noise
                moved = box + rng.normal(size=4) * box[[2, 3, 2, 3]] * shift
                wrong = rng.random() < 0.25
                detect(image, int(rng.choice(CATEGORIES)) if wrong else category, moved)
        for _ in range(int(rng.integers(0, 3))):
            size = rng.uniform(5, 60, 2)
            detect(image, int(rng.choice(CATEGORIES)),
                   np.concatenate([rng.random(2) * (SIDE - size), size]))  # fmt: skip
    return make_coco(content), rows
