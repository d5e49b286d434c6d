"""Generated ground truth and detections with the statistics of COCO."""

from typing import Any

import numpy as np
import torch
from pycocotools import mask as rle_codec
from torch import Tensor

from detlite.ops import paste_masks

CATEGORIES = 80
OBJECTS = 7.3  # mean per image
CROWDS = 0.012  # fraction of the objects
MASK_SIZE = 28  # side of the masks of a mask head


def generate(
    images: int, detections: int, seed: int = 0
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the content of an annotation file, and COCO results with boxes and masks.

    The fractions of small, medium and large objects are COCO's. A third of the objects have the
    same category, like COCO's persons. Polygons have 12 to 50 corners and up to three parts, and
    crowds are run lengths. Two thirds of the detections are near an object, with a score that
    decreases with the distance, and one in seven of these has another category. The others have
    random positions and low scores. Masks are smooth shapes, pasted like the masks of a mask head.

    Args:
        images: number of images.
        detections: detections per image.
        seed: seed of the random numbers.
    """
    rng = np.random.default_rng(seed)
    frequency = 1 / np.arange(2, CATEGORIES + 2)
    frequency[0] = frequency[1:].sum() / 2
    frequency /= frequency.sum()
    probs = _blobs(rng, 256)
    image_rows: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for image_id in range(1, images + 1):
        height, width = (480, 640) if rng.random() < 0.7 else (640, 480)
        name = f"{image_id:06d}.jpg"
        image_rows.append({"id": image_id, "file_name": name, "height": height, "width": width})
        count = min(int(rng.geometric(1 / (OBJECTS + 1))) - 1, 60)
        boxes = _boxes(rng, count, height, width)
        labels = 1 + rng.choice(CATEGORIES, count, p=frequency)
        for box, label in zip(boxes, labels.tolist(), strict=True):
            annotations.append(
                {"id": len(annotations) + 1, "image_id": image_id, "category_id": label,
                 "bbox": box.tolist(), **_shape(rng, box, height, width)}
            )  # fmt: skip
        detected, classes, scores = _detections(rng, boxes, labels, detections, height, width)
        rles = paste_masks(
            probs[rng.integers(len(probs), size=detections)], detected, (height, width)
        )
        xywh = torch.cat([detected[:, :2], detected[:, 2:] - detected[:, :2]], dim=1).tolist()
        results += [
            {"image_id": image_id, "category_id": label, "score": score, "bbox": box,
             "segmentation": rle}
            for label, score, box, rle in zip(classes, scores.tolist(), xywh, rles, strict=True)
        ]  # fmt: skip
    content = {
        "info": {},
        "images": image_rows,
        "annotations": annotations,
        "categories": [{"id": k, "name": str(k)} for k in range(1, CATEGORIES + 1)],
    }
    return content, results


def _boxes(rng: np.random.Generator, count: int, height: int, width: int) -> np.ndarray:
    """Return boxes xywh [count, 4]: 41 % below 32 x 32 and 24 % above 96 x 96, as in COCO."""
    side = np.exp(rng.normal(np.log(59), 1.18, count))
    stretch = np.exp(rng.normal(0, 0.4, count))
    sizes = np.stack([side * stretch, side / stretch], 1).clip(4, (width * 0.95, height * 0.95))
    corners = rng.random((count, 2)) * ((width, height) - sizes)
    return np.concatenate([corners, sizes], 1).round(2)


def _shape(rng: np.random.Generator, box: np.ndarray, height: int, width: int) -> dict[str, Any]:
    x, y, w, h = box
    parts = 1 if rng.random() < 0.9 else int(rng.integers(2, 4))
    polygons = []
    for part in range(parts):
        corners = int(rng.integers(12, 51))
        angles = np.sort(rng.random(corners)) * 2 * np.pi
        radii = 0.5 * np.clip(rng.normal(0.85, 0.12, corners), 0.3, 1)
        xs = x + w * (part + 0.5 + radii * np.cos(angles)) / parts
        ys = y + h * (0.5 + radii * np.sin(angles))
        polygons.append(np.stack([xs, ys], 1).round(2).ravel().tolist())
    rle = rle_codec.merge(rle_codec.frPyObjects(polygons, height, width))
    area = float(rle_codec.area(rle))
    if rng.random() >= CROWDS:
        return {"segmentation": polygons, "area": area, "iscrowd": 0}
    flat = rle_codec.decode(rle).ravel(order="F")
    edges = np.flatnonzero(np.diff(flat, prepend=0))
    counts = np.diff(edges, prepend=0, append=len(flat)).tolist()
    rows = {"size": [height, width], "counts": counts}
    return {"segmentation": rows, "area": area, "iscrowd": 1}


def _detections(
    rng: np.random.Generator, boxes: np.ndarray, labels: np.ndarray, count: int, height: int,
    width: int,
) -> tuple[Tensor, list[int], Tensor]:  # fmt: skip
    """Return boxes (xyxy, float32 [count, 4]), categories and scores, by decreasing score."""
    near = 2 * count // 3 if len(boxes) else 0
    index = rng.integers(max(len(boxes), 1), size=near)
    jitter = rng.gamma(1.5, 0.09, near)
    moved = boxes[index].copy()
    moved[:, :2] += rng.normal(size=(near, 2)) * jitter[:, None] * moved[:, 2:]
    moved[:, 2:] *= np.exp(rng.normal(size=(near, 2)) * jitter[:, None])
    is_wrong = rng.random(near) < 1 / 7
    others = rng.integers(1, CATEGORIES + 1, count)
    classes = np.concatenate([np.where(is_wrong, others[:near], labels[index]), others[near:]])
    detected = np.concatenate([moved, _boxes(rng, count - near, height, width)])
    scores = np.concatenate(
        [np.exp(-3 * jitter) * rng.beta(5, 1.5, near), rng.beta(1, 6, count - near)]
    )
    order = np.argsort(-scores)
    detected[:, 2:] += detected[:, :2]
    return (
        torch.from_numpy(detected[order]).float(),
        classes[order].tolist(),
        torch.from_numpy(scores[order]).float(),
    )


def _blobs(rng: np.random.Generator, count: int) -> Tensor:
    """Return mask probabilities [count, MASK_SIZE, MASK_SIZE] that fill about 0.7 of the boxes."""
    cells = (np.arange(MASK_SIZE) + 0.5) / MASK_SIZE * 2 - 1
    x, y = np.meshgrid(cells, cells)
    angle = np.arctan2(y, x)
    radius = np.full((count, MASK_SIZE, MASK_SIZE), 0.88)
    for waves in (2, 3, 5, 8):
        phase, height = rng.random((2, count, 1, 1))
        radius += 0.15 / np.sqrt(waves) * height * np.cos(waves * angle + 2 * np.pi * phase)
    return torch.from_numpy(1 / (1 + np.exp(-12 * (radius - np.hypot(x, y))))).float()
