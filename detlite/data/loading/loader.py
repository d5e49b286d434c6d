"""Loaders: data sets, transforms and samplers put together into streams of batches."""

from __future__ import annotations

import logging
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, Dataset
from yacs.config import CfgNode

from detlite import distributed
from detlite.config import ConfigError
from detlite.conventions import convention_of
from detlite.data.datasets.catalog import ConcatDataset
from detlite.data.datasets.coco import CocoDataset, Target
from detlite.data.errors import DataError
from detlite.data.transforms.augment import DetectionTransform, build_transform, mean_colour
from detlite.data.transforms.copy_paste import choose_objects, paste_objects
from detlite.data.transforms.crop import Colour
from detlite.data.transforms.mosaic import make_mosaic
from detlite.data.transforms.resize import get_size

from .batch_loader import BatchLoader
from .samplers import Sample, TrainingBatchSampler, repeat_factors

logger = logging.getLogger(__name__)


class TransformedDataset(Dataset[Any]):
    """Transformed images of a data set: by index, or randomly by `Sample`.

    The random numbers of a sample depend on `seed` and the sample alone: not on the process that
    loads it, nor on what was loaded before. A DataError is returned, not raised, as torch would
    bury its message on the way out of a loader process; `BatchLoader` raises it.

    With the probability `mosaic` a sample is made of its image and three others, see `make_mosaic`,
    at the size of its image or, under a crop, of that; `fill` is the colour of what they leave.
    With the probability `paste` some objects of another image are then pasted into it, see
    `paste_objects`. Each image is transformed apart; those of a mosaic are cropped by it. Others
    are drawn from the whole set, or where pictures lie in shards, from the same shard.
    """

    def __init__(
        self,
        dataset: CocoDataset | ConcatDataset,
        transform: DetectionTransform,
        seed: int,
        mosaic: float = 0.0,
        paste: float = 0.0,
        fill: Colour = (0.0, 0.0, 0.0),
    ) -> None:
        self._dataset = dataset
        self._transform = transform
        self._seed = seed
        self._mosaic, self._paste = mosaic, paste
        self._fill = fill
        self._shards = dataset.shards if mosaic or paste else None

    def __getitem__(self, sample: int | Sample) -> tuple[Tensor, Target] | DataError:
        try:
            if not isinstance(sample, Sample):
                return self._transform(*self._dataset[sample])
            # In the main process (NUM_WORKERS 0) the global generator is the model's, hence the
            # fork, and torch.manual_seed would also reset that of the GPU.
            with torch.random.fork_rng(devices=()):
                entropy = np.random.SeedSequence((self._seed, *sample))
                torch.default_generator.manual_seed(int(entropy.generate_state(1, np.uint64)[0]))
                return self._augmented(sample.image)
        except DataError as error:
            return error

    def _augmented(self, index: int) -> tuple[Tensor, Target]:
        if _happens(self._mosaic):
            image, target = self._mosaic_around(index)
        else:
            image, target = self._transform(*self._dataset[index])
        if _happens(self._paste):
            source, objects = self._transform(*self._dataset[self._another(index)])
            image, target = paste_objects(image, target, source, choose_objects(objects))
        return image, target

    def _mosaic_around(self, index: int) -> tuple[Tensor, Target]:
        chosen = [index, *(self._another(index) for _ in range(3))]
        parts = [self._transform.uncropped(*self._dataset[one]) for one in chosen]
        crop, (height, width) = self._transform.crop, parts[0][0].shape[1:]
        return make_mosaic(parts, (crop.side, crop.side) if crop else (height, width), self._fill)

    def _another(self, index: int) -> int:
        """A random image of the set, or of the shard if there are several in it; perhaps itself."""
        first, stop = 0, len(self._dataset)
        if self._shards is not None:
            own = self._shards[index]
            near = np.searchsorted(self._shards, (own, own + 1)).tolist()
            first, stop = near if near[1] - near[0] > 1 else (first, stop)
        return int(torch.randint(first, stop, ()))


def _happens(probability: float) -> bool:
    """By the global generator, of which nothing is drawn for what never happens."""
    return probability > 0 and float(torch.rand(())) < probability


def build_train_loader(
    cfg: CfgNode, dataset: CocoDataset | ConcatDataset, start_iter: int = 0
) -> BatchLoader:
    """An endless loader of this process's part of the training batches, from `start_iter` on.

    A run that is resumed gets the batches of one that never stopped, pixel by pixel.

    Raises:
        ConfigError: SOLVER.IMS_PER_BATCH cannot be shared among the processes, or
            INPUT.COPY_PASTE_PROB contradicts the model.
    """
    _per_process(cfg.SOLVER.IMS_PER_BATCH, "SOLVER.IMS_PER_BATCH")
    if len(dataset) < cfg.SOLVER.IMS_PER_BATCH:
        logger.warning(
            "SOLVER.IMS_PER_BATCH %d is more than the %d images of %s: a batch holds some of them "
            "more than once; lower it to %d",
            cfg.SOLVER.IMS_PER_BATCH, len(dataset), dataset.name, len(dataset),
        )  # fmt: skip
    grouping = cfg.DATALOADER.ASPECT_RATIO_GROUPING
    batches = TrainingBatchSampler(
        [grouping and ratio > 1 for ratio in dataset.aspect_ratios],
        cfg.SOLVER.IMS_PER_BATCH,
        cfg.SEED,
        start_iter,
        distributed.rank(),
        distributed.world_size(),
        _repeat_factors(cfg, dataset),
        dataset.shards,
        cfg.DATALOADER.SHARD_SHUFFLE,
    )
    transform = build_transform(cfg, train=True, keypoint_names=dataset.keypoint_names)
    paste = cfg.INPUT.COPY_PASTE_PROB
    if paste and (not cfg.MODEL.MASK_ON or cfg.MODEL.LOAD_PROPOSALS):
        raise ConfigError(
            f"INPUT.COPY_PASTE_PROB is {paste:g}: pasting objects needs their masks "
            "(MODEL.MASK_ON), and makes proposals of the pictures worthless (MODEL.LOAD_PROPOSALS)"
        )
    samples = TransformedDataset(
        dataset, transform, cfg.SEED, cfg.INPUT.MOSAIC_PROB, paste, mean_colour(cfg)
    )
    return BatchLoader(cfg, samples, batches)


def _repeat_factors(cfg: CfgNode, dataset: CocoDataset | ConcatDataset) -> np.ndarray | None:
    """How often each image appears in a round; None: once."""
    threshold = cfg.DATALOADER.REPEAT_THRESHOLD
    if not threshold:
        return None
    parts = dataset.datasets if isinstance(dataset, ConcatDataset) else [dataset]
    labels = [
        set(part.labels(index).tolist())
        for part in cast(list[CocoDataset], parts)
        for index in range(len(part))
    ]
    factors = repeat_factors(labels, threshold)
    logger.info(
        "DATALOADER.REPEAT_THRESHOLD %g: %d of %d images are repeated, at most %.1f times; a round "
        "has %.0f images", threshold, (factors > 1).sum(), len(factors), factors.max(),
        factors.sum(),
    )  # fmt: skip
    return factors


def build_test_loader(cfg: CfgNode, dataset: CocoDataset) -> BatchLoader:
    """A loader of this process's share of a set: over all processes each image exactly once.

    A batch is that of all processes together, of images of like size, and is padded to one size in
    each of them: what is found does not depend on their number. Shards are read in their order.

    Raises:
        ConfigError: TEST.IMS_PER_BATCH cannot be shared among the processes.
    """
    size = _per_process(cfg.TEST.IMS_PER_BATCH, "TEST.IMS_PER_BATCH")
    limits = cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.MAX_SIZE_TEST, convention_of(cfg).resize
    sizes = np.array([get_size(taken, *limits) for taken in dataset.sizes])
    order = np.arange(len(sizes)) if dataset.shards is not None else _by_size(sizes)
    # Shares that differ by at most one image: nothing is repeated to even them out. The n-th batch
    # of each process is its part of the n-th batch of all.
    share = order[distributed.rank() :: distributed.world_size()].tolist()
    samples = TransformedDataset(dataset, build_transform(cfg, train=False), cfg.SEED)
    views = cfg.TEST.BBOX_AUG.ENABLED or cfg.TEST.TILE  # of sizes of their own
    canvases = [] if views else _canvases(sizes[order], cfg.TEST.IMS_PER_BATCH)
    return BatchLoader(cfg, samples, BatchSampler(share, size, drop_last=False), canvases)


def _by_size(sizes: np.ndarray) -> np.ndarray:
    """The order of images (height, width) [N, 2] that has those of like size side by side: padding
    takes time, and what is near it is found less well."""
    return np.lexsort((-sizes[:, 1], -sizes[:, 0]))  # by height, then by width


def _canvases(sizes: np.ndarray, batch: int) -> list[tuple[int, int]]:
    """The (height, width) that holds each batch of sizes [images, 2]."""
    largest = [sizes[start : start + batch].max(axis=0) for start in range(0, len(sizes), batch)]
    return [(int(height), int(width)) for height, width in largest]


def _per_process(batch_size: int, key: str) -> int:
    world_size = distributed.world_size()
    if batch_size % world_size:
        raise ConfigError(
            f"{key} is {batch_size} over all processes, which {world_size} processes cannot "
            f"share equally: make it a multiple of {world_size}"
        )
    return batch_size // world_size
