"""Loaders: data sets, transforms and samplers put together into streams of batches."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler, get_worker_info
from yacs.config import CfgNode

from .. import distributed
from ..config import ConfigError
from ..convention import convention_of
from ..structures.canvas import ImagesOnCanvas
from .catalog import JoinedDataset
from .coco import CocoDataset, Target
from .copy_paste import choose_objects, paste_objects
from .errors import DataError
from .resize import get_size
from .samplers import Sample, TrainingBatchSampler, repeat_factors
from .transforms import DetectionTransform, build_transform

logger = logging.getLogger(__name__)

Batch = tuple[list[Tensor], list[Target]]


class LoaderProcessError(RuntimeError):
    """A loader process died, or cannot hand over what it loaded."""


@contextmanager
def naming_dead_loaders() -> Iterator[None]:
    """Raises a LoaderProcessError in place of what comes of the death of a loader process.

    torch raises a RuntimeError wherever the main process happens to be, which others may take for
    an error of their own, such as that of a file that cannot be written.
    """
    try:
        yield
    except RuntimeError as error:
        origin: BaseException | None = error
        while origin is not None and not str(origin).startswith("DataLoader worker (pid"):
            origin = origin.__cause__ or origin.__context__
        if origin is None:
            raise
        raise LoaderProcessError(
            "a loader process died, probably for want of memory "
            f"({str(origin).splitlines()[0].rstrip('. ')}): lower DATALOADER.NUM_WORKERS, and go "
            "on from the last checkpoint by --resume"
        ) from error


class BatchLoader(DataLoader[Any]):
    """A DataLoader of `(images, targets)`: lists of uint8 [3, H, W] tensors and of targets.

    `canvases` has for each batch the (height, width) to which its images are to be padded.

    Raises, while iterating:
        DataError: as raised by the data set, without the traceback of a loader process in it.
        LoaderProcessError: the shared memory, by which loader processes hand over batches, is full.
    """

    def __init__(
        self,
        cfg: CfgNode,
        samples: TransformedDataset,
        batches: Sampler[Any],
        canvases: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._canvases = canvases
        workers = cfg.DATALOADER.NUM_WORKERS
        super().__init__(
            samples,
            batch_sampler=batches,
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=_shared,
            pin_memory=torch.cuda.is_available() and cfg.MODEL.DEVICE != "cpu",
            # Its own generator: else each new iterator draws from the global one, the model's.
            generator=torch.Generator(),
            worker_init_fn=_outlive_one_signal,
        )

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        with _signals_wait():
            batches = super().__iter__()
        for number, samples in enumerate(batches):
            for sample in samples:
                if isinstance(sample, Exception):
                    raise sample
            images, targets = zip(*samples, strict=True)
            if self._canvases:
                yield ImagesOnCanvas(images, self._canvases[number]), list(targets)
            else:
                yield list(images), list(targets)


def _shared(samples: list[Any]) -> list[Any]:
    """The samples of a batch; in a loader process with their tensors in shared memory.

    torch would put them there in a thread, whose errors nobody hears of: with a full /dev/shm the
    main process would wait for ever.
    """
    if get_worker_info() is None:
        return samples
    try:
        for leaf in tree_leaves(samples):
            if isinstance(leaf, Tensor):
                leaf.share_memory_()
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        return [
            LoaderProcessError(
                f"a loader process cannot hand over a batch by shared memory ({reason}): make "
                "/dev/shm larger (of a container, --shm-size), or set DATALOADER.NUM_WORKERS 0"
            )
        ]
    return samples


_STOPPING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Within the block signals wait, in this process and in those that it starts.

    A loader process that has no handlers yet would end by them; and what this process' own handlers
    raise while it starts one is lost.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_STOPPING, signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _outlive_one_signal(worker: int) -> None:
    """Leaves it to the main process what to do about a signal that was sent to all processes.

    The next one, which may be that process' own, ends this one; Ctrl-C never does.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in _STOPPING:
        signal.signal(number, lambda number, frame: signal.signal(number, signal.SIG_DFL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*_STOPPING, signal.SIGINT})


class TransformedDataset(Dataset[Any]):
    """Transformed images of a data set: by index, or randomly by `Sample`.

    The random numbers of a sample depend on `seed` and the sample alone: not on the process that
    loads it, nor on what was loaded before. A DataError is returned, not raised, as torch would
    bury its message on the way out of a loader process; `BatchLoader` raises it.

    With the probability `paste` some objects of another image, transformed apart, are pasted into a
    sample, see `paste_objects`.
    """

    def __init__(
        self,
        dataset: CocoDataset | JoinedDataset,
        transform: DetectionTransform,
        seed: int,
        paste: float = 0.0,
    ) -> None:
        self._dataset = dataset
        self._transform = transform
        self._seed = seed
        self._paste = paste

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
        image, target = self._transform(*self._dataset[index])
        if self._paste == 0 or torch.rand(()) >= self._paste:
            return image, target
        other = int(torch.randint(len(self._dataset), ()))
        source, source_target = self._transform(*self._dataset[other])
        return paste_objects(image, target, source, choose_objects(source_target))


def build_train_loader(
    cfg: CfgNode, dataset: CocoDataset | JoinedDataset, start_iter: int = 0
) -> BatchLoader:
    """An endless loader of this process's part of the training batches, from `start_iter` on.

    A run that is resumed gets the batches of one that never stopped, pixel by pixel.

    Raises:
        ConfigError: SOLVER.IMS_PER_BATCH cannot be shared among the processes, or
            INPUT.COPY_PASTE_PROB contradicts the model.
    """
    _per_process(cfg.SOLVER.IMS_PER_BATCH, "SOLVER.IMS_PER_BATCH")
    grouping = cfg.DATALOADER.ASPECT_RATIO_GROUPING
    batches = TrainingBatchSampler(
        [grouping and ratio > 1 for ratio in dataset.aspect_ratios],
        cfg.SOLVER.IMS_PER_BATCH,
        cfg.SEED,
        start_iter,
        distributed.rank(),
        distributed.world_size(),
        _repeat_factors(cfg, dataset),
    )
    transform = build_transform(cfg, train=True, keypoint_names=dataset.keypoint_names)
    paste = cfg.INPUT.COPY_PASTE_PROB
    if paste and (not cfg.MODEL.MASK_ON or cfg.MODEL.LOAD_PROPOSALS):
        raise ConfigError(
            f"INPUT.COPY_PASTE_PROB is {paste:g}: pasting objects needs their masks "
            "(MODEL.MASK_ON), and makes proposals of the pictures worthless (MODEL.LOAD_PROPOSALS)"
        )
    return BatchLoader(cfg, TransformedDataset(dataset, transform, cfg.SEED, paste), batches)


def _repeat_factors(cfg: CfgNode, dataset: CocoDataset | JoinedDataset) -> np.ndarray | None:
    """How often each image appears in a round; None: once."""
    threshold = cfg.DATALOADER.REPEAT_THRESHOLD
    if not threshold:
        return None
    parts = dataset.datasets if isinstance(dataset, JoinedDataset) else [dataset]
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

    A batch is that of all processes together, consecutive images of the set, and is padded to one
    size in each of them: what is found does not depend on their number.

    Raises:
        ConfigError: TEST.IMS_PER_BATCH cannot be shared among the processes.
    """
    size = _per_process(cfg.TEST.IMS_PER_BATCH, "TEST.IMS_PER_BATCH")
    # Shares that differ by at most one image: nothing is repeated to even them out. The n-th batch
    # of each process is its part of the n-th batch of all.
    shard = range(distributed.rank(), len(dataset), distributed.world_size())
    samples = TransformedDataset(dataset, build_transform(cfg, train=False), cfg.SEED)
    canvases = _canvases(cfg, dataset)
    return BatchLoader(cfg, samples, BatchSampler(shard, size, drop_last=False), canvases)


def _canvases(cfg: CfgNode, dataset: CocoDataset) -> list[tuple[int, int]]:
    """The (height, width) that holds each batch of evaluation; of several views there is none."""
    if cfg.TEST.BBOX_AUG.ENABLED:
        return []
    limits = cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.MAX_SIZE_TEST, convention_of(cfg).resize
    sizes = np.array([get_size(size, *limits) for size in dataset.sizes])
    step = cfg.TEST.IMS_PER_BATCH
    largest = [sizes[start : start + step].max(axis=0) for start in range(0, len(sizes), step)]
    return [(int(height), int(width)) for height, width in largest]


def _per_process(batch_size: int, key: str) -> int:
    world_size = distributed.world_size()
    if batch_size % world_size:
        raise ConfigError(
            f"{key} is {batch_size} over all processes, which {world_size} processes cannot "
            f"share equally: make it a multiple of {world_size}"
        )
    return batch_size // world_size
