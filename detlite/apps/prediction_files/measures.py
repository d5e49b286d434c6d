"""Measurements of detected objects, and label images of them.

The columns of objects have the names and definitions of scikit-image's `regionprops_table`: pixels
have integer coordinates (row, column), and lengths and areas are in pixels.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from detlite.config import ConfigError
from detlite.files.atomic_write import atomic_path
from detlite.structures.masks.formats import to_bitmap

MEASURES = ("area", "equivalent_diameter_area", "perimeter", "centroid-0", "centroid-1")
# Contribution to the perimeter of a border pixel by 1 + 2 a + 10 b, if a of its neighbors in
# the four directions and b of its diagonal ones are border pixels (Benkrid and Crookes, "Design and
# FPGA Implementation of a Perimeter Estimator").
_PERIMETER = np.zeros(50)
_PERIMETER[[5, 7, 15, 17, 25, 27]] = 1
_PERIMETER[[21, 33]] = math.sqrt(2)
_PERIMETER[[13, 23]] = (1 + math.sqrt(2)) / 2
_KINDS = torch.tensor([[[[10.0, 2, 10], [2, 1, 2], [10, 2, 10]]]])
_NEIGHBORS = (_KINDS < 10).float()  # a pixel and its neighbors in the four directions


def add_measures(objects: Sequence[dict[str, Any]], image: np.ndarray) -> None:
    """Add `measures` to COCO results of an image uint8 [3, H, W]; ConfigError without masks."""
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
    pixels = torch.from_numpy(mask).float()[None, None]
    border = pixels * (F.conv2d(pixels, _NEIGHBORS, padding=1) < 5)
    kinds = F.conv2d(border, _KINDS, padding=1)[border > 0]
    return float(_PERIMETER[kinds.int().numpy()].sum())


def write_label_image(file: Path, prediction: Mapping[str, Any]) -> None:
    """Write a label image of a prediction: value k is its k-th object, 0 the background.

    It has 16 bits, or 32 for more than 65,535 objects. Where objects overlap, the one with the
    highest score is on top. Raises ConfigError if the prediction has no masks, or too many for PNG.
    """
    if "masks" not in prediction:
        raise ConfigError("--label-images needs a model that predicts masks")
    size, scores = tuple(prediction["size"]), np.array(prediction["scores"])
    is_tiff, fits = file.suffix == ".tif", len(scores) < 1 << 16
    if not (is_tiff or fits):
        raise ConfigError(f"{file}: PNG has no values for {len(scores)} objects: choose tiff")
    values = np.zeros(size, np.uint16 if fits else np.int32)
    for index in np.argsort(scores, kind="stable"):
        values[to_bitmap(prediction["masks"][int(index)], *size) > 0] = index + 1
    with atomic_path(file) as temporary:
        Image.fromarray(values).save(temporary, "TIFF" if is_tiff else "PNG")
