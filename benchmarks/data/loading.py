"""Speed of the training loader, compared with torchvision's CocoDetection and transforms."""

import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import CocoDetection, wrap_dataset_for_transforms_v2
from torchvision.transforms import v2
from yacs.config import CfgNode

from benchmarks.clock import Clock
from benchmarks.models.images import generate_images
from benchmarks.operators.case import random_boxes
from benchmarks.operators.masks import polygons
from detlite.config import load_config
from detlite.data import CocoDataset, build_dataset, build_train_loader
from detlite.data.datasets.options import DatasetOptions


@dataclass(frozen=True)
class DataRow:
    """Result for one number of loader processes. `ratio` is detlite's rate over torchvision's."""

    dataset: str
    workers: int
    detlite_images_per_s: float
    torchvision_images_per_s: float
    ratio: float


def benchmark_data(
    config: str | Path,
    opts: Sequence[Any] = (),
    workers: Sequence[int] = (0, 2),
    real: bool = False,
    batch: int = 2,
    images: int = 32,
    turns: int = 3,
    clock: Clock = time.perf_counter,
) -> Iterator[DataRow]:
    """Measure the images per second, decoded, augmented and resized, with their masks.

    Args:
        config: config file with the resizing and the training set.
        opts: overrides of the config.
        workers: numbers of loader processes.
        real: load the first training set of the config instead of generated images of 480 x 640.
        batch: images per batch.
        images: images per turn, rounded up to full batches.
        turns: timed turns of each library, after a warm-up turn.
        clock: source of times.
    """
    with tempfile.TemporaryDirectory() as folder:
        for count in workers:
            settings = ["DATALOADER.NUM_WORKERS", count, "SOLVER.IMS_PER_BATCH", batch]
            cfg = load_config(config, [*settings, *opts])
            if real:
                dataset = build_dataset(cfg, cfg.DATASETS.TRAIN[0], train=True)
            else:
                dataset = generated_dataset(Path(folder), images)
            steps = -(-images // batch)
            streams: list[Iterator[Any]] = [
                iter(build_train_loader(cfg, dataset)),
                _torchvision_batches(cfg, dataset),
            ]
            times: list[list[float]] = [[], []]
            for turn in range(turns + 1):
                for stream, seconds in zip(streams, times, strict=True):
                    start = clock()
                    for _ in islice(stream, steps):
                        pass
                    if turn:
                        seconds.append(clock() - start)
            rate, torchvision_rate = (steps * batch / statistics.median(t) for t in times)
            yield DataRow(dataset.name, count, rate, torchvision_rate, rate / torchvision_rate)


def _torchvision_batches(cfg: CfgNode, dataset: CocoDataset) -> Iterator[Any]:
    """Yield an infinite sequence of batches, flipped and resized by torchvision's transforms."""
    transforms = v2.Compose(
        [
            v2.ToImage(),
            v2.RandomHorizontalFlip(cfg.INPUT.HORIZONTAL_FLIP_PROB_TRAIN),
            v2.RandomShortestSize(list(cfg.INPUT.MIN_SIZE_TRAIN), cfg.INPUT.MAX_SIZE_TRAIN),
            v2.ToDtype(torch.float32, scale=True),
            v2.SanitizeBoundingBoxes(),
        ]
    )
    folder = Path(str(dataset.image_path(0))).parent
    reference = CocoDetection(folder, dataset.annotation_file, transforms=transforms)
    reference.ids = list(dataset.image_ids)  # only images with objects
    loader = DataLoader(
        wrap_dataset_for_transforms_v2(reference, target_keys=("boxes", "labels", "masks")),
        cfg.SOLVER.IMS_PER_BATCH,
        shuffle=True,
        num_workers=cfg.DATALOADER.NUM_WORKERS,
        persistent_workers=cfg.DATALOADER.NUM_WORKERS > 0,
        collate_fn=_collate,
    )
    while True:
        yield from loader


def _collate(samples: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(zip(*samples, strict=True))


def generated_dataset(folder: Path, count: int, size: tuple[int, int] = (480, 640)) -> CocoDataset:
    """Write JPEG images with ten polygons each, unless they exist, and open them."""
    annotations = folder / "annotations.json"
    if not annotations.exists():
        torch.manual_seed(0)
        rows: list[dict[str, Any]] = []
        for index, image in enumerate(generate_images(count, *size)):
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{index}.jpg")
            boxes = random_boxes(10, 16, 400, "cpu", size)
            for box, outline in zip(boxes.tolist(), polygons(boxes, 40), strict=True):
                x1, y1, x2, y2 = box
                rows.append(
                    {
                        "id": len(rows) + 1,
                        "image_id": index,
                        "category_id": 1,
                        "bbox": [x1, y1, x2 - x1, y2 - y1],
                        "area": (x2 - x1) * (y2 - y1),
                        "iscrowd": 0,
                        "segmentation": [outline.tolist()],
                    }
                )
        images = [
            {"id": index, "file_name": f"{index}.jpg", "height": size[0], "width": size[1]}
            for index in range(count)
        ]
        categories = [{"id": 1, "name": "star"}]
        annotations.write_text(
            json.dumps({"images": images, "annotations": rows, "categories": categories})
        )
    return CocoDataset(annotations, folder, DatasetOptions(train=True), name="generated")
