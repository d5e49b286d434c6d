"""A synthetic dataset of overlapping shapes: small, but not solvable with filled boxes.

Categories differ by outline only: color, texture, size and rotation are random for each shape. All
shapes are rotated, bent or hollow, so a shape fills at most half of its box.
"""

import json
import math
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from pycocotools import mask as rle_codec

from detlite.config import ConfigError
from detlite.files.errors import DataError
from detlite.structures.masks.formats import encode_bitmap

from .catalog import DATASETS, Entry, check_fields

_VERSION = 2  # part of the folder name; increase it with every change of the images
# Sparse ids, as in COCO, to exercise the mapping to labels.
CATEGORIES = {2: "ring", 3: "star", 5: "triangle", 7: "crescent", 11: "bar"}
_SIDES = (128, 144, 160)  # pixels
_RADII = (18, 40)  # pixels, about half the extent of a shape
_COUNTS = (1, 4)  # shapes that are tried per image
_MARGIN = 2 * _RADII[1]  # around the image, so that its border can cut shapes
_OVERSAMPLING = 4
_MIN_VISIBLE = 0.75  # fraction of the area of a shape
_MIN_CONTRAST = 80  # distance between the mean colors of a shape and its background


@DATASETS.register("shapes")
def shapes_files(entry: Entry, root: Path) -> tuple[Path, Path]:
    """`{name, type: shapes, path: folder, split: train, images: 400, seed: 1}`.

    The dataset is written to `root / path` at first use.
    """
    check_fields(entry, {"path": str, "split": str, "images": int, "seed": int})
    if entry["images"] < 1 or entry["seed"] < 0 or not entry["split"].isidentifier():
        raise ConfigError(
            f"DATASETS.CATALOG, {entry['name']}: images must be at least 1, seed at least 0 and "
            f"split an identifier, not {entry['images']}, {entry['seed']} and {entry['split']!r}"
        )
    folder = generate_shapes(root / entry["path"], entry["split"], entry["images"], entry["seed"])
    return folder / "annotations.json", folder / "images"


def generate_shapes(path: Path, split: str, images: int, seed: int) -> Path:
    """Write `annotations.json` and `images/` to a folder in `path`, unless it exists; return it.

    The same arguments produce the same bytes. The folder appears only when it is complete, and
    several processes may write it concurrently.
    """
    folder = path / f"{split}-{images}-seed{seed}-v{_VERSION}"
    if folder.is_dir():
        return folder
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{split}-", dir=path) as temporary:
            unfinished = Path(temporary) / folder.name
            _write(unfinished, split, images, seed)
            unfinished.rename(folder)
    except OSError as error:
        # Another process may have finished the same dataset first.
        if not folder.is_dir():
            raise DataError(
                f"{path}: the synthetic dataset cannot be written ({error.strerror})"
            ) from error
    return folder


def _write(folder: Path, split: str, images: int, seed: int) -> None:
    (folder / "images").mkdir(parents=True)
    content: dict[str, Any] = {
        "info": {"description": "detlite shapes", "version": _VERSION},
        "categories": [{"id": number, "name": name} for number, name in CATEGORIES.items()],
        "images": [],
        "annotations": [],
    }
    for index in range(images):
        rng = np.random.default_rng((seed, zlib.crc32(split.encode()), index))
        pixels, annotations = draw_scene(rng)
        file_name = f"{index + 1:06d}.png"
        Image.fromarray(pixels).save(folder / "images" / file_name)
        height, width = pixels.shape[:2]
        content["images"].append(
            {"id": index + 1, "file_name": file_name, "height": height, "width": width}
        )
        for annotation in annotations:
            number = len(content["annotations"]) + 1
            content["annotations"].append({"id": number, "image_id": index + 1, **annotation})
    (folder / "annotations.json").write_text(json.dumps(content))


@dataclass(frozen=True)
class _Shape:
    category_id: int
    outline: np.ndarray  # [P, 2] x, y
    hole: np.ndarray | None


def draw_scene(rng: np.random.Generator) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Draw an image: pixels uint8 [H, W, 3], and COCO annotations without `id` and `image_id`.

    Fully visible shapes have polygons; hollow, occluded and cut ones the RLE of the visible part.
    """
    height, width = (int(side) for side in rng.choice(_SIDES, 2))
    base = rng.uniform(30, 225, 3)
    canvas = _texture(rng, base, height, width)
    visible: list[tuple[_Shape, np.ndarray, int]] = []  # shape, visible mask, whole area
    for _ in range(int(rng.integers(_COUNTS[0], _COUNTS[1] + 1))):
        shape = _random_shape(rng, height, width)
        whole = _coverage(shape, height, width)
        alpha = whole[_MARGIN:-_MARGIN, _MARGIN:-_MARGIN]
        mask, area = alpha >= 0.5, int((whole >= 0.5).sum())
        occluded = [(other, seen & ~mask, full) for other, seen, full in visible]
        placed = [*occluded, (shape, mask, area)]
        # Skip a shape that is cut too much or would hide too much of another one.
        if any(seen.sum() < _MIN_VISIBLE * full for _, seen, full in placed):
            continue
        visible = placed
        fill = _texture(rng, _contrasting(rng, base), height, width)
        canvas += alpha[:, :, None] * (fill - canvas)
    canvas += rng.normal(0, rng.uniform(2, 10), canvas.shape)
    annotations = [_annotation(shape, mask, area) for shape, mask, area in visible]
    return canvas.clip(0, 255).astype(np.uint8), annotations


def _random_shape(rng: np.random.Generator, height: int, width: int) -> _Shape:
    category_id = int(rng.choice(list(CATEGORIES)))
    # Uniform on a logarithmic scale, so that small shapes are as common as large ones.
    radius = math.exp(rng.uniform(*np.log(_RADII)))
    hole = None
    if CATEGORIES[category_id] == "ring":
        outline = _polar(np.ones(48), np.arange(48) * math.tau / 48)
        outline[:, 1] *= rng.uniform(0.7, 1.0)
        hole = outline * rng.uniform(0.55, 0.7)
    elif CATEGORIES[category_id] == "star":
        spokes = np.where(np.arange(10) % 2, rng.uniform(0.38, 0.48), 1.0)
        outline = _polar(spokes, np.arange(10) * math.tau / 10)
    elif CATEGORIES[category_id] == "triangle":
        angles = np.arange(3) * math.tau / 3 + rng.uniform(-0.3, 0.3, 3)
        outline = _polar(np.ones(3), angles)
    elif CATEGORIES[category_id] == "crescent":
        outline = _crescent(rng.uniform(0.45, 0.6), 0.85)
    else:
        half = np.array([1.0, rng.uniform(0.2, 0.3)])
        outline = half * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    angle = rng.uniform(0, math.tau)
    rotation = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    center = rng.uniform((0.08 * width, 0.08 * height), (0.92 * width, 0.92 * height))

    def placed(points: np.ndarray) -> np.ndarray:
        return points @ rotation * radius + center

    return _Shape(category_id, placed(outline), None if hole is None else placed(hole))


def _polar(radii: np.ndarray, angles: np.ndarray) -> np.ndarray:
    return np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)


def _crescent(offset: float, radius: float) -> np.ndarray:
    """Return the outline [P, 2] of the unit disc without the disc of `radius` at (offset, 0)."""
    x = (offset**2 + 1 - radius**2) / (2 * offset)  # of the intersections of the two circles
    y = math.sqrt(1 - x**2)
    outer, inner = math.atan2(y, x), math.atan2(y, x - offset)
    steps = np.linspace(0, 1, 32)
    outer_arc = _polar(np.ones(32), outer + steps * (math.tau - 2 * outer))
    inner_arc = _polar(np.full(32, radius), math.tau - inner - steps * (math.tau - 2 * inner))
    inner_arc[:, 0] += offset
    return np.concatenate([outer_arc, inner_arc])


def _coverage(shape: _Shape, height: int, width: int) -> np.ndarray:
    """Return the covered fraction of each pixel: float [H + 2 * _MARGIN, W + 2 * _MARGIN]."""
    size = (width + 2 * _MARGIN, height + 2 * _MARGIN)
    image = Image.new("L", (size[0] * _OVERSAMPLING, size[1] * _OVERSAMPLING))
    draw = ImageDraw.Draw(image)
    for points, value in ((shape.outline, 255), (shape.hole, 0)):
        if points is not None:
            # Pillow counts coordinates from pixel centres.
            corners = (points + _MARGIN) * _OVERSAMPLING - 0.5
            draw.polygon([tuple(corner) for corner in corners], fill=value)
    return np.asarray(image.resize(size, Image.Resampling.BOX), np.float64) / 255


def _texture(rng: np.random.Generator, color: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return a surface around a color with a gradient, stripes and spots: float [H, W, 3]."""
    y, x = np.mgrid[:height, :width]
    direction, slant = rng.uniform(0, math.tau, 2)
    gradient = (np.cos(direction) * x / width + np.sin(direction) * y / height) * rng.uniform(0, 30)
    stripes = np.sin((np.cos(slant) * x + np.sin(slant) * y) * rng.uniform(0.3, 1.2))
    spots = Image.fromarray(rng.normal(0, 1, (9, 9)).astype(np.float32))
    cloud = np.asarray(spots.resize((width, height), Image.Resampling.BICUBIC))
    light = gradient + stripes * rng.uniform(0, 14) + cloud * rng.uniform(0, 14)
    return color + light[:, :, None] * rng.uniform(0.6, 1.0, 3)


def _contrasting(rng: np.random.Generator, base: np.ndarray) -> np.ndarray:
    while True:
        color = rng.uniform(20, 235, 3)
        if np.linalg.norm(color - base) >= _MIN_CONTRAST:
            return color


def _annotation(shape: _Shape, mask: np.ndarray, area: int) -> dict[str, Any]:
    rle = encode_bitmap(mask)
    fully_visible = shape.hole is None and mask.sum() == area
    return {
        "category_id": shape.category_id,
        "bbox": rle_codec.toBbox(rle).astype(int).tolist(),
        "area": int(rle_codec.area(rle)),
        "iscrowd": 0,
        "segmentation": [shape.outline.round(2).flatten().tolist()] if fully_visible else rle,
    }
