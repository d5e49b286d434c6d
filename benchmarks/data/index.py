"""A large data set opened, beside torchvision's CocoDetection and pycocotools: time and memory."""

from __future__ import annotations

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

from benchmarks.roofline import status
from detlite.data import CocoDataset
from detlite.data.index.cache import VARIABLE

SIZE = 480, 640  # of the pictures
_OBJECTS = 7.17  # of an image, the mean of COCO
_OUTLINES = 5000  # that differ
_PICTURES = 64  # that differ; of a picture, file systems have 65,000 names at most


@dataclass(frozen=True)
class IndexRow:
    """Opening a data set in a process of its own, up to its first image, and loading from it.

    Memory is in MB: `peak` beyond what libraries take; `first_all` and `last_all` of this and the
    loader processes together, libraries included, after the first and the last batch. Pages that
    they share count once.
    """

    way: str
    images: int
    seconds: float
    cpu_seconds: float
    peak: float
    first_all: float | None
    last_all: float | None


def benchmark_index(
    images: int, batches: int = 0, loaders: int = 4, folder: Path | None = None
) -> Iterator[IndexRow]:
    """Measures each way once: the index is made, is there, and the two others.

    Args:
        images: of the generated set.
        batches: of two images, loaded by `loaders` processes; 0: none.
        loaders: loader processes.
        folder: where the set is, or is put, to be used again; None: a temporary one.
    """
    with tempfile.TemporaryDirectory() as temporary:
        files = large_set(folder or Path(temporary), images)
        # Processes that are started anew inherit it.
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = temporary
        try:
            for name, ways in WAYS.items():
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                    yield pool.submit(measure, name, ways, files, batches, loaders).result()
        finally:
            os.environ.pop(VARIABLE)
            if before is not None:
                os.environ[VARIABLE] = before


def large_set(folder: Path, count: int, seed: int = 0) -> tuple[Path, Path]:
    """A set of so many images with polygons, as COCO writes it, unless it is there.

    Pictures are JPEGs of SIZE, and few that differ: the others are further names of these.

    Returns:
        The annotation file and the folder of the pictures.
    """
    pictures, file = folder / f"images-{count}", folder / f"annotations-{count}.json"
    if file.exists():
        return file, pictures
    pictures.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    height, width = SIZE
    for number in range(_PICTURES):
        noise = Image.fromarray(rng.integers(0, 256, (height // 16, width // 16, 3), np.uint8))
        noise.resize((width, height)).save(folder / f"{number}.jpg")
    for number in range(count):
        os.link(folder / f"{number % _PICTURES}.jpg", pictures / f"{number:012d}.jpg")
    outlines = [_outline(rng) for _ in range(_OUTLINES)]
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
            for outline, category in rng.integers((_OUTLINES, 80), size=(objects, 2)).tolist():
                number += 1
                opened.write(
                    f'{", " * (number > 1)}{{{outlines[outline]}, "image_id": {image}, '
                    f'"category_id": {category + 1}, "id": {number}}}'
                )
        opened.write(f'], "categories": {json.dumps(categories)}}}')
    unfinished.rename(file)
    return file, pictures


def _outline(rng: np.random.Generator) -> str:
    """An object's polygon of 8 to 46 corners, box and area, as members of JSON."""
    height, width = SIZE
    angles = np.sort(rng.uniform(0, 2 * np.pi, rng.integers(8, 47)))
    around = np.stack([np.cos(angles), np.sin(angles)], axis=1) * rng.uniform(0.6, 1)
    corners = rng.uniform((0.1 * width, 0.1 * height), (0.9 * width, 0.9 * height))
    corners = (corners + rng.uniform(10, 48) * around).clip(0, (width, height)).round(2)
    low, high = corners.min(axis=0), corners.max(axis=0)
    members = {
        "segmentation": [corners.ravel().tolist()],
        "area": round(float((high - low).prod() / 2), 2),
        "iscrowd": 0,
        "bbox": [*low.tolist(), *(high - low).round(2).tolist()],
    }
    return json.dumps(members)[1:-1]


def _by_detlite(annotations: Path, pictures: Path) -> Any:
    return CocoDataset(annotations, pictures, train=True)


def _by_torchvision(annotations: Path, pictures: Path) -> Any:
    return CocoDetection(pictures, annotations)


class _Pycocotools:
    """The ground truth alone: images with the annotations that pycocotools finds."""

    def __init__(self, annotations: Path, pictures: Path) -> None:
        self._coco, self._pictures = COCO(annotations), pictures
        self._ids = sorted(self._coco.imgs)

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> Any:
        (row,) = self._coco.loadImgs(self._ids[index])
        found = self._coco.loadAnns(self._coco.getAnnIds(row["id"]))
        return Image.open(self._pictures / row["file_name"]).convert("RGB"), found


Open = Callable[[Path, Path], Any]
WAYS: dict[str, Open] = {
    "detlite, index made": _by_detlite,
    "detlite, index there": _by_detlite,
    "torchvision CocoDetection": _by_torchvision,
    "pycocotools": _Pycocotools,
}


def measure(name: str, way: Open, files: tuple[Path, Path], batches: int, loaders: int) -> IndexRow:
    """One row, in this process."""
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    start, cpu = time.perf_counter(), time.process_time()
    dataset = way(*files)
    dataset[0]
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    # What earlier work has freed may be used again, and some systems count pages late.
    peak = max(0.0, status("VmHWM") - before)
    first, last = _loaded(dataset, batches, loaders) if batches else (None, None)
    return IndexRow(name, len(dataset), seconds, cpu, peak, first, last)


def _loaded(dataset: Sized, batches: int, loaders: int) -> tuple[float, float]:
    order = torch.randint(len(dataset), (2 * batches,), generator=torch.Generator().manual_seed(0))
    loader: DataLoader[Any] = DataLoader(
        dataset,  # type: ignore[arg-type]
        2,
        sampler=order.tolist(),
        num_workers=loaders,
        collate_fn=_count,
    )
    stream = iter(loader)
    next(stream)
    first = _memory()
    for _ in islice(stream, batches - 2):
        pass
    last = _memory()
    return first, last


def _count(samples: Sequence[Any]) -> int:
    return len(samples)


def _memory() -> float:
    """Of this process and those that it started, in MB: what several share counts once."""
    processes = (os.getpid(), *(child.pid for child in multiprocessing.active_children()))
    texts = (Path(f"/proc/{process}/smaps_rollup").read_text() for process in processes)
    return sum(int(text.split("\nPss:")[1].split()[0]) for text in texts) * 1024 / 1e6
