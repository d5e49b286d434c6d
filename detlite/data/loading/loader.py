"""Build the loaders of training and evaluation from datasets, transforms and samplers."""

import logging
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, Dataset
from yacs.config import CfgNode

from detlite import distributed
from detlite.config import ConfigError
from detlite.conventions import convention_of
from detlite.data.datasets.coco import CocoDataset, ConcatDataset, Target
from detlite.data.transforms.copy_paste import choose_objects, paste_objects
from detlite.data.transforms.custom import TRANSFORMS, apply_custom
from detlite.data.transforms.detection_transform import DetectionTransform, build_transform
from detlite.data.transforms.resize import get_size
from detlite.data.transforms.targets import TargetTransform
from detlite.data.transforms.tiles import TrainingTiles
from detlite.files.errors import DataError

from .batch_loader import BatchLoader
from .image_memory import ImageMemory, build_image_memory
from .samplers import Sample, TrainingBatchSampler

logger = logging.getLogger(__name__)


@dataclass
class TransformedDataset(Dataset[Any]):
    """A dataset with a transform; images are requested by index, or by `Sample` for training.

    The random numbers of a sample depend only on `seed` and the sample, not on the loader process
    or on earlier samples. A DataError is returned instead of raised, because torch would bury its
    message in the traceback of a loader process. `BatchLoader` raises it.

    Attributes:
        paste: probability of pasting objects of another image, see `paste_objects`.
        custom: transforms that are applied last, with their names.
        tiles: cuts tiles; `Sample.repeat` selects one of the image.
        memory: keeps decoded images.
    """

    dataset: CocoDataset | ConcatDataset
    transform: DetectionTransform
    seed: int
    paste: float = 0.0
    custom: Sequence[tuple[str, TargetTransform]] = ()
    tiles: TrainingTiles | None = None
    memory: ImageMemory | None = None

    def __getitem__(self, sample: int | Sample) -> tuple[Tensor, Target] | DataError:
        try:
            if not isinstance(sample, Sample):
                return self.transform(*self.dataset[sample])
            # With NUM_WORKERS 0 the global generator is also the model's, so it is restored.
            # torch.manual_seed would also reset the generator of the GPU.
            with torch.random.fork_rng(devices=()):
                entropy = np.random.SeedSequence((self.seed, *sample))
                torch.default_generator.manual_seed(int(entropy.generate_state(1, np.uint64)[0]))
                return self._augmented(sample.image, sample.repeat)
        except DataError as error:
            return error

    def _augmented(self, index: int, repeat: int) -> tuple[Tensor, Target]:
        image, target = self.transform(*self._load(index, repeat))
        if self.paste and float(torch.rand(())) < self.paste:
            another = int(torch.randint(len(self.dataset), ()))  # may be `index`
            source, objects = self.transform(*self._load(another))
            image, target = paste_objects(image, target, source, choose_objects(objects))
        if self.custom:
            return apply_custom(self.custom, image, target)
        return image, target

    def _load(self, index: int, tile: int | None = None) -> tuple[Tensor, Target]:
        """Read an image or a tile of it; a random tile if `tile` is None.

        Large images are read at a reduced size if they will be resized to a smaller one.
        """
        cache = partial(self.memory.get, index) if self.memory else None
        if self.tiles is None:
            return self.dataset.load(index, self.transform.largest_size, cache)
        tile = int(torch.randint(1 << 30, ())) if tile is None else tile
        image, target = self.dataset.load(index, None, cache)
        return self.tiles.cut(image, target, tile)


def build_train_loader(
    cfg: CfgNode, dataset: CocoDataset | ConcatDataset, start_iter: int = 0
) -> BatchLoader:
    """Build an endless loader of this process's part of the training batches.

    A resumed run that starts at `start_iter` has exactly the batches of an uninterrupted run.
    """
    _per_process(cfg.SOLVER.IMS_PER_BATCH, "SOLVER.IMS_PER_BATCH")
    if len(dataset) < cfg.SOLVER.IMS_PER_BATCH:
        logger.warning(
            "SOLVER.IMS_PER_BATCH %d exceeds the %d images of %s: batches contain images more than "
            "once. Lower it to %d",
            cfg.SOLVER.IMS_PER_BATCH, len(dataset), dataset.name, len(dataset),
        )  # fmt: skip
    tiles = TrainingTiles(cfg.INPUT.TILE) if cfg.INPUT.TILE else None
    if cfg.INPUT.TILE != cfg.TEST.TILE:
        logger.warning(
            "INPUT.TILE is %d, but TEST.TILE is %d: objects have another size in evaluation than "
            "in training. Set both to the same side", cfg.INPUT.TILE, cfg.TEST.TILE,
        )  # fmt: skip
    factors = None
    if tiles or cfg.DATALOADER.REPEAT_THRESHOLD:
        factors = build_repeat_factors(cfg, dataset, tiles)
    grouping = cfg.DATALOADER.ASPECT_RATIO_GROUPING
    batches = TrainingBatchSampler(
        [grouping and ratio > 1 for ratio in dataset.aspect_ratios],
        cfg.SOLVER.IMS_PER_BATCH,
        cfg.SEED,
        start_iter,
        distributed.rank(),
        distributed.world_size(),
        factors,
    )
    transform = build_transform(cfg, train=True, keypoint_names=dataset.keypoint_names)
    paste = cfg.INPUT.COPY_PASTE_PROB
    if paste and (not cfg.MODEL.MASK_ON or cfg.MODEL.LOAD_PROPOSALS):
        raise ConfigError(
            f"INPUT.COPY_PASTE_PROB is {paste:g}, but pasting objects needs their masks "
            "(MODEL.MASK_ON) and invalidates proposals (MODEL.LOAD_PROPOSALS)"
        )
    names = cfg.INPUT.TRANSFORMS
    custom = [(name, TRANSFORMS.get(name, "INPUT.TRANSFORMS")) for name in names]
    memory = None
    if cfg.DATALOADER.CACHE:
        parts = dataset.parts if isinstance(dataset, ConcatDataset) else [dataset]
        sizes = [size for part in parts for size in part.sizes]
        memory = build_image_memory(cfg, sizes, parts[0].options.images.channels)
    samples = TransformedDataset(dataset, transform, cfg.SEED, paste, custom, tiles, memory)
    return BatchLoader(cfg, samples, batches)


def build_test_loader(cfg: CfgNode, dataset: CocoDataset) -> BatchLoader:
    """Build a loader of this process's part of a dataset; all processes cover each image once.

    A batch comprises the images of all processes. They have similar sizes and are padded to the
    same size in each process, so the detections do not depend on the number of processes.
    """
    batch_size = _per_process(cfg.TEST.IMS_PER_BATCH, "TEST.IMS_PER_BATCH")
    limits = cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.MAX_SIZE_TEST, convention_of(cfg).resize
    sizes = np.array([get_size(size, *limits) for size in dataset.sizes])
    # Padding costs time, and objects near it are detected worse: sort by height, then width.
    order = np.lexsort((-sizes[:, 1], -sizes[:, 0]))
    # The parts differ by at most one image; no image is repeated to equalize them. The n-th batch
    # of a process is its part of the n-th joint batch.
    indices = order[distributed.rank() :: distributed.world_size()].tolist()
    samples = TransformedDataset(dataset, build_transform(cfg, train=False), cfg.SEED)
    resizes_later = cfg.TEST.BBOX_AUG.ENABLED or cfg.TEST.TILE
    padded_sizes = [] if resizes_later else _batch_sizes(sizes[order], cfg.TEST.IMS_PER_BATCH)
    sampler = BatchSampler(indices, batch_size, drop_last=False)
    return BatchLoader(cfg, samples, sampler, padded_sizes)


def _batch_sizes(sizes: np.ndarray, batch_size: int) -> list[tuple[int, int]]:
    """Return the maximum (height, width) of each batch of sizes [images, 2]."""
    starts = range(0, len(sizes), batch_size)
    largest = [sizes[start : start + batch_size].max(axis=0) for start in starts]
    return [(int(height), int(width)) for height, width in largest]


def _per_process(batch_size: int, key: str) -> int:
    world_size = distributed.world_size()
    if batch_size % world_size:
        raise ConfigError(
            f"{key} is {batch_size}, the number of images over all processes: make it a multiple "
            f"of the {world_size} processes"
        )
    return batch_size // world_size


def build_repeat_factors(
    cfg: CfgNode, dataset: CocoDataset | ConcatDataset, tiles: TrainingTiles | None
) -> np.ndarray:
    """Build the factors of all images from their tiles and DATALOADER.REPEAT_THRESHOLD."""
    threshold = cfg.DATALOADER.REPEAT_THRESHOLD
    parts = dataset.parts if isinstance(dataset, ConcatDataset) else [dataset]
    factors = np.ones(len(dataset))
    if tiles:
        counts = [
            tiles.count(size, part.boxes(k)) for part in parts for k, size in enumerate(part.sizes)
        ]
        whole = sum(counts) - sum(tiles.count(size) for part in parts for size in part.sizes)
        logger.info(
            "INPUT.TILE %d: an epoch has %d tiles of %d images, %d of them whole images for "
            "objects that are too large for tiles", tiles.side, sum(counts), len(counts), whole,
        )  # fmt: skip
        factors *= counts
    if threshold:
        labels = [set(part.labels(index).tolist()) for part in parts for index in range(len(part))]
        repeats = repeat_factors(labels, threshold)
        logger.info(
            "DATALOADER.REPEAT_THRESHOLD %g: %d of %d images are repeated, at most %.1f times; an "
            "epoch has %.0f images", threshold, (repeats > 1).sum(), len(repeats), repeats.max(),
            repeats.sum(),
        )  # fmt: skip
        factors *= repeats
    return factors


def repeat_factors(labels: Sequence[Collection[int]], threshold: float) -> np.ndarray:
    """Return how often each image should appear in an epoch so that rare categories are seen more.

    A category in a fraction f of the images has the factor max(1, sqrt(threshold / f)). An image
    has the largest factor of its categories (LVIS, arXiv 1908.03195, appendix B.2).
    """
    categories = [set(image_labels) for image_labels in labels]
    images = Counter(category for in_image in categories for category in in_image)
    factor = {
        category: max(1.0, math.sqrt(threshold * len(categories) / count))
        for category, count in images.items()
    }
    maxima = (max(map(factor.__getitem__, in_image), default=1.0) for in_image in categories)
    return np.array([*maxima])
