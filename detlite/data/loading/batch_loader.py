"""Batches from loader processes, and what happens to these: signals, death, full memory."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info
from yacs.config import CfgNode

from detlite.data.datasets.coco import Target
from detlite.structures.padded_batch import ImagesOnCanvas

Batch = tuple[list[Tensor], list[Target]]


class LoaderProcessError(RuntimeError):
    """A loader process died, or cannot hand over what it loaded."""


@contextmanager
def explain_dead_loader() -> Iterator[None]:
    """Raises a LoaderProcessError in place of what comes of the death of a loader process.

    torch raises a RuntimeError wherever the main process happens to be, which others may take for
    an error of their own, such as that of a file that cannot be written or of a missing operator.
    """
    try:
        yield
    except Exception as error:
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
        samples: Dataset[Any],
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
