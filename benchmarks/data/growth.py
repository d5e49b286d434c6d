"""Growth of the CPU time and memory of commands with the size of their input."""

import contextlib
import io
import json
import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from pycocotools.coco import COCO

from benchmarks.roofline import process_memory, reset_peak_memory
from detlite.apps.cli.main import main
from detlite.checkpoint.contents import Checkpoint
from detlite.checkpoint.files import save_checkpoint
from detlite.config import load_config
from detlite.data import CocoDataset
from detlite.data.datasets.options import DatasetOptions
from detlite.files import cache
from detlite.modeling import build_model

SIDE = 96  # height and width of the images
_CONFIG = ("demo_shapes.yaml", ["MODEL.DEVICE", "cpu", "DTYPE", "float32"])
Call = Callable[[], object]


@dataclass(frozen=True)
class GrowthRow:
    """Result of a case for one size, in a new process.

    Attributes:
        case: a key of CASES.
        size: number of images, tiles or regions.
        cpu_seconds: CPU time of the call, without imports and the generation of its input.
        peak: peak memory in 10^6 bytes, beyond what was used before the call.
        exponent: p, if the time has grown like size^p since the previous row; NaN in the first.
    """

    case: str
    size: int
    cpu_seconds: float
    peak: float
    exponent: float


class Case(NamedTuple):
    """The smallest size, a function that writes the input, and one that returns the call."""

    size: int
    write: Callable[[Path, int], None]
    prepare: Callable[[Path, int], Call]


def benchmark_growth(only: Sequence[str], scale: float) -> Iterator[GrowthRow]:
    """Measure each case with four sizes, each twice the one before.

    Args:
        only: measure the cases whose names contain one of these texts; all if empty.
        scale: factor of all sizes.
    """
    for name, case in CASES.items():
        before = math.nan
        for factor in (1, 2, 4, 8) if not only or any(text in name for text in only) else ():
            size = max(1, round(case.size * factor * scale))
            with tempfile.TemporaryDirectory() as folder:
                _in_new_process(case.write, Path(folder), size)
                seconds, peak = _in_new_process(measure, name, Path(folder), size)
            yield GrowthRow(name, size, seconds, peak, math.log2(seconds / before))
            before = seconds


def _in_new_process(function: Callable[..., Any], *arguments: object) -> Any:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def measure(name: str, folder: Path, size: int) -> tuple[float, float]:
    """Return the CPU seconds and the peak memory in 10^6 bytes of a case in this process."""
    torch.set_num_threads(1)
    os.environ[cache.VARIABLE] = str(folder / "cache")
    call = CASES[name].prepare(folder, size)
    memory = process_memory("VmRSS")
    reset_peak_memory()
    start = time.process_time()
    call()
    seconds = time.process_time() - start
    # Can be negative, because freed memory is used again and some systems count pages late.
    return seconds, max(0.0, process_memory("VmHWM") - memory)


def write_images(folder: Path, count: int, scenes: int = 0, objects: int = 1) -> None:
    """Write a COCO dataset: `folder`/data/annotations.json and images/.

    Args:
        folder: an existing folder.
        count: number of images.
        scenes: number of scenes that the images show; 0: each image shows another one.
        objects: number of objects per image, with polygons of eight corners.
    """
    images = folder / "data" / "images"
    images.mkdir(parents=True)
    rng = np.random.default_rng(0)
    shown = rng.integers(0, 256, (scenes or count, 8, 8, 3), np.uint8)
    angles = np.arange(8) * np.pi / 4
    polygon = (SIDE / 2 + 20 * np.stack([np.cos(angles), np.sin(angles)], axis=1)).round(2)
    box = [28, 28, 40, 40]
    member = {"category_id": 1, "bbox": box, "area": 1131, "iscrowd": 0}
    member["segmentation"] = [polygon.ravel().tolist()]
    rows: list[dict[str, Any]] = []
    for number in range(1, count + 1):
        scene = Image.fromarray(shown[number % len(shown)]).resize((SIDE, SIDE))
        noise = rng.integers(-2, 3, (SIDE, SIDE, 3), np.int16)
        pixels = (np.asarray(scene) + noise).clip(0, 255).astype(np.uint8)
        name = f"{number:07d}.jpg"
        Image.fromarray(pixels).save(images / name)
        rows.append({"id": number, "file_name": name, "height": SIDE, "width": SIDE})
    annotations = [
        {"id": image * objects + number, "image_id": image, **member}
        for image in range(1, count + 1)
        for number in range(objects)
    ]
    categories = [{"id": 1, "name": "thing"}]
    content = {"images": rows, "annotations": annotations, "categories": categories}
    _file(folder).write_text(json.dumps(content))


def _write_yolo(folder: Path, count: int) -> None:
    write_images(folder, count)
    (folder / "data" / "labels").mkdir()
    for file in _images(folder).iterdir():
        label = folder / "data" / "labels" / f"{file.stem}.txt"
        label.write_text("0 0.5 0.5 0.25 0.25\n")
    _file(folder).unlink()


def _write_missing(folder: Path, count: int) -> None:
    write_images(folder, count)
    for path in sorted(_images(folder).iterdir())[1::2]:
        path.rename(path.with_name(f"renamed_{path.name}"))


def _write_large_image(folder: Path, tiles: int) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    _images(folder).mkdir(parents=True)
    pixels = np.tile(noise, (8, -(-tiles // 8), 1))
    Image.fromarray(pixels).save(_images(folder) / "large.png")


def _file(folder: Path) -> Path:
    return folder / "data" / "annotations.json"


def _images(folder: Path) -> Path:
    return folder / "data" / "images"


def _open(folder: Path, size: int) -> Call:
    return partial(CocoDataset, _file(folder), _images(folder), DatasetOptions(train=True))


def _open_again(folder: Path, size: int) -> Call:
    call = _open(folder, size)
    call()
    return call


def _open_pycocotools(folder: Path, size: int) -> Call:
    return partial(COCO, str(_file(folder)))


def _open_hotcoco(folder: Path, size: int) -> Call:
    import hotcoco

    return partial(hotcoco.COCO, str(_file(folder)))


def _check(folder: Path, size: int) -> Call:
    page = folder / "page.html"
    return _command("check", "--data", _file(folder), "--images", _images(folder), "--page", page)


def _init(folder: Path, size: int) -> Call:
    return _command("init", "--data", folder / "data", "--annotations", folder / "made")


def _init_missing(folder: Path, size: int) -> Call:
    options = ("--images", _images(folder), "--annotations", folder / "made", "--skip-bad")
    return _command("init", "--data", _file(folder), *options)


def _predict(folder: Path, size: int, options: Sequence[object] = ()) -> Call:
    torch.manual_seed(0)
    config, file = load_config(*_CONFIG), folder / "model.pth"
    model = build_model(config)
    save_checkpoint(Checkpoint(file, model.state_dict(), model.categories, config.dump()))
    outputs = ("--output", folder / "found", "--draw", "none", "--threshold", 0.1)
    return _command("predict", "--weights", file, "--input", _images(folder), *outputs, *options)


_predict_tiles = partial(_predict, options=("--tile", SIDE))


def _command(*words: object) -> Call:
    def run() -> None:
        errors = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            status = main([str(word) for word in words])
        if status:
            raise RuntimeError(f"detlite {' '.join(map(str, words))}: {errors.getvalue()}")

    return run


def _training_step(folder: Path, regions: int) -> Call:
    torch.manual_seed(0)
    model = build_model(load_config(*_CONFIG)).train()
    corners = (SIDE - 20) * torch.rand(regions + 10, 2)
    target = {
        "boxes": torch.cat([corners, corners + 20], dim=1),
        "labels": torch.ones(regions + 10, dtype=torch.int64),
        "masks": torch.ones(regions + 10, SIDE, SIDE, dtype=torch.bool),
        "ignored": torch.arange(regions + 10) >= 10,
    }
    return partial(model, [torch.rand(3, SIDE, SIDE)], [target])


_SEVEN_OBJECTS = partial(write_images, objects=7)
CASES = {
    "first start, images": Case(10_000, _SEVEN_OBJECTS, _open),
    "later start, images": Case(10_000, _SEVEN_OBJECTS, _open_again),
    "start of pycocotools, images": Case(10_000, _SEVEN_OBJECTS, _open_pycocotools),
    "check, images": Case(1000, write_images, _check),
    "check, images of a fixed camera": Case(1000, partial(write_images, scenes=1), _check),
    "init, images with YOLO labels": Case(1000, _write_yolo, _init),
    "init, images of which half are missing": Case(1000, _write_missing, _init_missing),
    "predict, images": Case(100, write_images, _predict),
    "predict --tile, tiles": Case(64, _write_large_image, _predict_tiles),
    "training step, ignored regions": Case(250, write_images, _training_step),
}
if find_spec("hotcoco"):
    CASES["start of hotcoco, images"] = Case(10_000, _SEVEN_OBJECTS, _open_hotcoco)
