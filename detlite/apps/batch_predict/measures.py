"""Measurements of detected objects, and label images of them.

The columns of objects have the names and definitions of scikit-image's `regionprops_table`: pixels
have integer coordinates (row, column), and lengths and areas are in pixels.
"""

import csv
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from detlite.atomic_write import atomic_open, atomic_path
from detlite.config import ConfigError
from detlite.structures.masks.formats import to_bitmap

MEASURES = ("area", "equivalent_diameter_area", "perimeter", "centroid-0", "centroid-1")
_SUMMARY = ("image_id", "file_name", "image_height", "image_width", "objects",
            "objects_per_megapixel", "area_fraction")  # fmt: skip
# Contribution to the perimeter of a border pixel by 1 + 2 a + 10 b, if a of its neighbors in
# the four directions and b of its diagonal ones are border pixels (Benkrid and Crookes, "Design and
# FPGA Implementation of a Perimeter Estimator").
_PERIMETER = np.zeros(50)
_PERIMETER[[5, 7, 15, 17, 25, 27]] = 1
_PERIMETER[[21, 33]] = math.sqrt(2)
_PERIMETER[[13, 23]] = (1 + math.sqrt(2)) / 2


def add_measures(objects: Sequence[dict[str, Any]], image: np.ndarray) -> None:
    """Add `measures` to COCO results of an image uint8 [3, H, W].

    Raises:
        ConfigError: they have no masks.
    """
    for obj in objects:
        if "segmentation" not in obj:
            raise ConfigError("--format measures needs a model that predicts masks")
        obj["measures"] = measure(to_bitmap(obj["segmentation"], *image.shape[1:]) > 0, image)


def measure(mask: np.ndarray, image: np.ndarray) -> dict[str, float]:
    """Return MEASURES of a mask bool [H, W], and its `intensity_mean-<channel>` in an image."""
    rows, columns = np.nonzero(mask)
    area = len(rows)
    center = (rows.mean(), columns.mean()) if area else (math.nan, math.nan)
    values = (area, math.sqrt(4 * area / math.pi), perimeter(mask), *map(float, center))
    means = image[:, rows, columns].mean(axis=1) if area else np.full(len(image), math.nan)
    channels = {f"intensity_mean-{k}": float(mean) for k, mean in enumerate(means)}
    return dict(zip(MEASURES, values, strict=True)) | channels


def perimeter(mask: np.ndarray) -> float:
    """Return the length of the border of a mask bool [H, W], as `skimage.measure.perimeter`."""
    padded = np.pad(mask, 2)
    inside = padded[1:-1, 1:-1].copy()
    straight = [(0, 1), (1, 0), (1, 2), (2, 1)]
    border = inside.copy()
    for y, x in straight:
        inside &= _shifted(padded, y, x)
    border = np.pad(border & ~inside, 1).astype(np.int64)
    kinds = _shifted(border, 1, 1).copy()
    for y, x in straight:
        kinds += 2 * _shifted(border, y, x)
    for y, x in ((0, 0), (0, 2), (2, 0), (2, 2)):
        kinds += 10 * _shifted(border, y, x)
    return float(_PERIMETER[kinds[_shifted(border, 1, 1) > 0]].sum())


def _shifted(padded: np.ndarray, y: int, x: int) -> np.ndarray:
    """Return the window at (y, x), 0 to 2, of an array with a margin of 1."""
    return padded[y : padded.shape[0] - 2 + y, x : padded.shape[1] - 2 + x]


def write_summary(
    file: Path, images: Iterable[Mapping[str, Any]], results: Path, names: Iterable[str]
) -> None:
    """Write the number, density and area of the objects of each image as a CSV file.

    Args:
        file: the file to write.
        images: `id`, `file_name`, `height` and `width` of all images.
        results: CSV file of the objects, with the columns `image_id`, `category` and `area`.
        names: names of the categories, which become columns.
    """
    counts: Counter[tuple[int, str]] = Counter()
    areas: Counter[int] = Counter()
    with results.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            counts[int(row["image_id"]), row["category"]] += 1
            areas[int(row["image_id"])] += int(row["area"])
    names = list(names)
    with atomic_open(file) as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow((*_SUMMARY, *names))
        for image in images:
            number, pixels = image["id"], image["height"] * image["width"]
            own = [counts[number, name] for name in names]
            name = image["file_name"].encode(errors="surrogateescape").decode(errors="replace")
            density, fraction = sum(own) * 1e6 / pixels, areas[number] / pixels
            values = (number, name, image["height"], image["width"], sum(own), density, fraction)
            writer.writerow((*values, *own))


def write_label_image(file: Path, prediction: Mapping[str, Any]) -> None:
    """Write a 16-bit label image of a prediction: value k is its k-th object, 0 the background.

    Where objects overlap, the one with the highest score is on top.

    Raises:
        ConfigError: the prediction has no masks.
    """
    if "masks" not in prediction:
        raise ConfigError("--label-images needs a model that predicts masks")
    size = tuple(prediction["size"])
    values, scores = np.zeros(size, np.uint16), np.array(prediction["scores"])
    for index in np.argsort(scores, kind="stable"):
        mask = prediction["masks"][int(index)]
        bitmap = to_bitmap(mask, *size) if isinstance(mask, dict) else np.asarray(mask)
        values[bitmap > 0] = index + 1
    with atomic_path(file) as temporary:
        Image.fromarray(values).save(temporary, "TIFF" if file.suffix == ".tif" else "PNG")
