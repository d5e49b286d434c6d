"""Time and memory to open a large dataset, compared with pycocotools and hotcoco."""

import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image
from pycocotools.coco import COCO

from benchmarks.roofline import process_memory, reset_peak_memory
from detlite.data import CocoDataset
from detlite.data.datasets.options import DatasetOptions
from detlite.files import cache

SIZE = 480, 640  # height and width of the images
_OBJECTS = 7.17  # mean per image, as in COCO
_POLYGONS = 5000  # number of distinct polygons
_IMAGES = 64  # number of distinct images; a file can have at most 65,000 hard links


@dataclass(frozen=True)
class IndexRow:
    """Result of opening a dataset in a new process.

    Attributes:
        method: a key of METHODS: the library, and for detlite if its index exists.
        images: number of images.
        seconds, cpu_seconds: until the file is read; for detlite also checked, with its images.
        peak: peak memory in 10^6 bytes, without the libraries.
    """

    method: str
    images: int
    seconds: float
    cpu_seconds: float
    peak: float


def benchmark_index(images: int, folder: Path | None = None) -> Iterator[IndexRow]:
    """Measure each method once: detlite without and with an index, pycocotools and hotcoco.

    Args:
        images: number of images of the generated dataset.
        folder: folder that keeps the dataset for later calls; None: a temporary one.
    """
    with tempfile.TemporaryDirectory() as temporary:
        files = generate_large_dataset(folder or Path(temporary), images)
        # The new processes inherit the variable.
        before = os.environ.get(cache.VARIABLE)
        os.environ[cache.VARIABLE] = temporary
        try:
            for name in METHODS:
                if name != "hotcoco" or find_spec("hotcoco"):
                    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                        yield pool.submit(measure, name, files).result()
        finally:
            os.environ.pop(cache.VARIABLE)
            if before is not None:
                os.environ[cache.VARIABLE] = before


def generate_large_dataset(folder: Path, count: int, seed: int = 0) -> tuple[Path, Path]:
    """Write a COCO dataset of `count` images with polygons, unless it exists.

    The images are JPEGs of SIZE. Most of them are hard links to a few distinct files.

    Returns:
        The annotation file and the folder of images.
    """
    image_folder, file = folder / f"images-{count}", folder / f"annotations-{count}.json"
    if file.exists():
        return file, image_folder
    image_folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    height, width = SIZE
    for number in range(_IMAGES):
        noise = Image.fromarray(rng.integers(0, 256, (height // 16, width // 16, 3), np.uint8))
        noise.resize((width, height)).save(folder / f"{number}.jpg")
    for number in range(count):
        os.link(folder / f"{number % _IMAGES}.jpg", image_folder / f"{number:012d}.jpg")
    polygons = [_polygon(rng) for _ in range(_POLYGONS)]
    categories = [{"id": number, "name": f"thing {number}"} for number in range(1, 81)]
    number = 0
    unfinished = file.with_suffix(".unfinished")
    with unfinished.open("w") as opened:
        opened.write('{"images": [')
        for image in range(count):
            row = {
                "license": 1, "file_name": f"{image:012d}.jpg", "height": height, "width": width,
                "id": image + 1,
            }  # fmt: skip
            opened.write(", " * (image > 0) + json.dumps(row))
        opened.write('], "annotations": [')
        for image, objects in enumerate(rng.poisson(_OBJECTS, count).tolist(), start=1):
            for polygon, category in rng.integers((_POLYGONS, 80), size=(objects, 2)).tolist():
                number += 1
                opened.write(
                    f'{", " * (number > 1)}{{{polygons[polygon]}, "image_id": {image}, '
                    f'"category_id": {category + 1}, "id": {number}}}'
                )
        opened.write(f'], "categories": {json.dumps(categories)}}}')
    unfinished.rename(file)
    return file, image_folder


def _polygon(rng: np.random.Generator) -> str:
    """Return polygon (8 to 46 corners), area and box of an object as members of JSON."""
    height, width = SIZE
    angles = np.sort(rng.uniform(0, 2 * np.pi, rng.integers(8, 47)))
    offsets = np.stack([np.cos(angles), np.sin(angles)], axis=1) * rng.uniform(0.6, 1)
    center = rng.uniform((0.1 * width, 0.1 * height), (0.9 * width, 0.9 * height))
    corners = (center + rng.uniform(10, 48) * offsets).clip(0, (width, height)).round(2)
    low, high = corners.min(axis=0), corners.max(axis=0)
    members = {
        "segmentation": [corners.ravel().tolist()],
        "area": round(float((high - low).prod() / 2), 2),
        "iscrowd": 0,
        "bbox": [*low.tolist(), *(high - low).round(2).tolist()],
    }
    return json.dumps(members)[1:-1]


def _open_detlite(annotations: Path, images: Path) -> int:
    return len(CocoDataset(annotations, images, DatasetOptions(train=True)))


def _open_hotcoco(annotations: Path, images: Path) -> int:
    import hotcoco

    return len(hotcoco.COCO(str(annotations)).get_img_ids())


# Functions of the annotation file and the folder of images that return the number of images.
METHODS: dict[str, Callable[[Path, Path], int]] = {
    "detlite without index": _open_detlite,
    "detlite with index": _open_detlite,
    "pycocotools": lambda annotations, images: len(COCO(annotations).imgs),
    "hotcoco": _open_hotcoco,
}


def measure(name: str, files: tuple[Path, Path]) -> IndexRow:
    """Measure one method in this process."""
    before = process_memory("VmRSS")
    reset_peak_memory()
    start, cpu = time.perf_counter(), time.process_time()
    images = METHODS[name](*files)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    # Can be negative, because freed memory is used again and some systems count pages late.
    peak = max(0.0, process_memory("VmHWM") - before)
    return IndexRow(name, images, seconds, cpu, peak)
