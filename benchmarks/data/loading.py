"""The loader alone, beside torchvision's CocoDetection and transforms."""

from __future__ import annotations

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

from benchmarks.models.images import pictures
from benchmarks.operators.case import Clock, boxes_between
from benchmarks.operators.masks import polygons
from detlite.config import load_config
from detlite.data import CocoDataset, build_dataset, build_train_loader


@dataclass(frozen=True)
class DataRow:
    """One number of loader processes. `ratio` is detlite's rate over torchvision's."""

    data_set: str
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
    """Measures how many images a second come, decoded, augmented and resized, with their masks.

    Args:
        config: says how images are resized, and which training set is loaded.
        opts: overrides of it.
        workers: numbers of loader processes.
        real: load the first training set of the config, not generated pictures of 480 x 640.
        batch: images of a batch.
        images: of a turn, full batches.
        turns: of each library that count, after one to warm up.
        clock: what times are read from.
    """
    with tempfile.TemporaryDirectory() as folder:
        for count in workers:
            own = ["DATALOADER.NUM_WORKERS", count, "SOLVER.IMS_PER_BATCH", batch]
            cfg = load_config(config, [*own, *opts])
            if real:
                dataset = build_dataset(cfg, cfg.DATASETS.TRAIN[0], train=True)
            else:
                dataset = generated_dataset(Path(folder), images)
            steps = -(-images // batch)
            streams: list[Iterator[Any]] = [
                iter(build_train_loader(cfg, dataset)),
                _torchvision_stream(cfg, dataset),
            ]
            times: list[list[float]] = [[], []]
            for turn in range(turns + 1):
                for stream, seconds in zip(streams, times, strict=True):
                    start = clock()
                    for _ in islice(stream, steps):
                        pass
                    if turn:
                        seconds.append(clock() - start)
            ours, theirs = (steps * batch / statistics.median(t) for t in times)
            yield DataRow(dataset.name, count, ours, theirs, ours / theirs)


def _torchvision_stream(cfg: CfgNode, dataset: CocoDataset) -> Iterator[Any]:
    """Endless batches, flipped and resized as torchvision's users do it."""
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
    peer = CocoDetection(folder, dataset.annotation_file, transforms=transforms)
    peer.ids = list(dataset.image_ids)  # those with objects
    loader = DataLoader(
        wrap_dataset_for_transforms_v2(peer, target_keys=("boxes", "labels", "masks")),
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
    """JPEG pictures with ten outlined objects in each, written where they are not there yet."""
    annotations = folder / "annotations.json"
    if not annotations.exists():
        torch.manual_seed(0)
        rows: list[dict[str, Any]] = []
        for index, picture in enumerate(pictures(count, *size)):
            Image.fromarray(picture.permute(1, 2, 0).numpy()).save(folder / f"{index}.jpg")
            boxes = boxes_between(10, 16, 400, "cpu", size)
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
    return CocoDataset(annotations, folder, name="generated", train=True)
