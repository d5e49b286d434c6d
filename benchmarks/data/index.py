"""Time and memory to open a large dataset, compared with torchvision and pycocotools."""

import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence, Sized
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from pycocotools.coco import COCO
from torch.utils.data import DataLoader
from torchvision.datasets import CocoDetection

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
    """Result of opening a dataset in a new process, reading its first image, and loading batches.

    Attributes:
        method: a key of METHODS: the library, and for detlite if the index exists.
        images: number of images.
        seconds, cpu_seconds: time until the first image is read.
        peak: peak memory in 10^6 bytes, without the libraries.
        first_all, last_all: memory of this process and the loader processes after the first and the
            last batch, in 10^6 bytes, including the libraries. Shared pages count once.
    """

    method: str
    images: int
    seconds: float
    cpu_seconds: float
    peak: float
    first_all: float | None
    last_all: float | None


def benchmark_index(
    images: int, batches: int = 0, loaders: int = 4, folder: Path | None = None
) -> Iterator[IndexRow]:
    """Measure each method once: detlite without and with an index, torchvision and pycocotools.

    Args:
        images: number of images of the generated dataset.
        batches: number of batches of two images to load; 0 for none.
        loaders: number of loader processes.
        folder: folder that keeps the dataset for later calls; None: a temporary one.
    """
    with tempfile.TemporaryDirectory() as temporary:
        files = generate_large_dataset(folder or Path(temporary), images)
        # The new processes inherit the variable.
        before = os.environ.get(cache.VARIABLE)
        os.environ[cache.VARIABLE] = temporary
        try:
            for name, open_dataset in METHODS.items():
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                    yield pool.submit(measure, name, open_dataset, files, batches, loaders).result()
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


def _open_detlite(annotations: Path, images: Path) -> Any:
    return CocoDataset(annotations, images, DatasetOptions(train=True))


def _open_torchvision(annotations: Path, images: Path) -> Any:
    return CocoDetection(images, annotations)


class _PycocotoolsDataset:
    """Images with their annotations from pycocotools."""

    def __init__(self, annotations: Path, images: Path) -> None:
        self._coco, self._images = COCO(annotations), images
        self._ids = sorted(self._coco.imgs)

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> Any:
        (row,) = self._coco.loadImgs(self._ids[index])
        annotations = self._coco.loadAnns(self._coco.getAnnIds(row["id"]))
        return Image.open(self._images / row["file_name"]).convert("RGB"), annotations


Open = Callable[[Path, Path], Any]
METHODS: dict[str, Open] = {
    "detlite without index": _open_detlite,
    "detlite with index": _open_detlite,
    "torchvision CocoDetection": _open_torchvision,
    "pycocotools": _PycocotoolsDataset,
}


def measure(
    name: str, open_dataset: Open, files: tuple[Path, Path], batches: int, loaders: int
) -> IndexRow:
    """Measure one method in this process."""
    before = process_memory("VmRSS")
    reset_peak_memory()
    start, cpu = time.perf_counter(), time.process_time()
    dataset = open_dataset(*files)
    dataset[0]
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    # Can be negative, because freed memory is used again and some systems count pages late.
    peak = max(0.0, process_memory("VmHWM") - before)
    first, last = _loading_memory(dataset, batches, loaders) if batches else (None, None)
    return IndexRow(name, len(dataset), seconds, cpu, peak, first, last)


def _loading_memory(dataset: Sized, batches: int, loaders: int) -> tuple[float, float]:
    order = torch.randint(len(dataset), (2 * batches,), generator=torch.Generator().manual_seed(0))
    loader: DataLoader[Any] = DataLoader(
        dataset,  # type: ignore[arg-type]
        2,
        sampler=order.tolist(),
        num_workers=loaders,
        collate_fn=_count,
    )
    iterator = iter(loader)
    next(iterator)
    first = _total_memory()
    for _ in islice(iterator, batches - 2):
        pass
    last = _total_memory()
    return first, last


def _count(samples: Sequence[Any]) -> int:
    return len(samples)


def _total_memory() -> float:
    """Return the memory of this process and its children in 10^6 bytes. Shared pages count once."""
    processes = (os.getpid(), *(child.pid for child in multiprocessing.active_children()))
    texts = (Path(f"/proc/{process}/smaps_rollup").read_text() for process in processes)
    return sum(int(text.split("\nPss:")[1].split()[0]) for text in texts) * 1024 / 1e6
