"""Load batches in processes; handle signals, dead loader processes and full shared memory."""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info
from yacs.config import CfgNode

from detlite.data.datasets.coco import Target
from detlite.distributed import local_size
from detlite.errors import LoaderProcessError
from detlite.structures.instances import PaddedBatchImages
from detlite.threads import usable_cores

Batch = tuple[list[Tensor], list[Target]]

_MAX_WORKERS = 4  # by default


@contextmanager
def explain_dead_loader() -> Iterator[None]:
    """Raise a LoaderProcessError instead of torch's errors about a dead loader process.

    torch raises a RuntimeError wherever the main process currently is, where it can be mistaken for
    another error, for example about a file that cannot be written.
    """
    try:
        yield
    except Exception as error:
        origin: BaseException | None = error
        while origin is not None and not str(origin).startswith("DataLoader worker (pid"):
            origin = origin.__cause__ or origin.__context__
        if origin is None:
            raise
        reason = str(origin).splitlines()[0].rstrip(". ")
        raise LoaderProcessError(
            f"a loader process died, probably because memory was full ({reason}). Lower "
            "DATALOADER.NUM_WORKERS; a training run continues with --resume"
        ) from error


def worker_count(cfg: CfgNode) -> int:
    """Return DATALOADER.NUM_WORKERS, by default at most one loader process for each core."""
    count = cfg.DATALOADER.NUM_WORKERS
    return max(1, min(_MAX_WORKERS, usable_cores() // local_size())) if count is None else count


class BatchLoader(DataLoader[Any]):
    """A DataLoader of `(images, targets)`: lists of uint8 [3, H, W] tensors and of targets.

    Iterating raises the DataError of a dataset without the traceback of its process, or
    LoaderProcessError. Batch k is padded to `padded_sizes[k]`, (height, width).
    """

    def __init__(
        self,
        cfg: CfgNode,
        samples: Dataset[Any],
        batches: Sampler[Any],
        padded_sizes: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._padded_sizes = padded_sizes
        workers = worker_count(cfg)
        super().__init__(
            samples,
            batch_sampler=batches,
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=_share,
            pin_memory=torch.cuda.is_available() and cfg.MODEL.DEVICE != "cpu",
            # Each new iterator would draw from the global generator, which is the model's.
            generator=torch.Generator(),
            worker_init_fn=_ignore_first_signal,
        )

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        with _signals_deferred():
            batches = super().__iter__()
        for number, samples in enumerate(self._receive(batches)):
            for sample in samples:
                if isinstance(sample, Exception):
                    raise sample
            images, targets = zip(*samples, strict=True)
            if self._padded_sizes:
                yield PaddedBatchImages(images, self._padded_sizes[number]), list(targets)
            else:
                yield list(images), list(targets)

    def _receive(self, batches: Iterator[list[Any]]) -> Iterator[list[Any]]:
        """Yield the samples of each batch. Raises RuntimeError if a process dies during a batch."""
        try:
            yield from batches
        except (EOFError, ConnectionError) as error:
            # torch describes errors that a dataset raised in a loader process; these are different.
            if not self.num_workers or str(error).startswith("Caught "):
                raise
            # Worded like torch's errors, which `explain_dead_loader` recognizes.
            raise RuntimeError("DataLoader worker (pid unknown) died while it sent data") from error


def _share(samples: list[Any]) -> list[Any]:
    """Move the tensors of a batch to shared memory in a loader process; return the samples.

    torch would do this in a thread that loses errors: with a full /dev/shm the main process would
    wait forever.
    """
    tensors = [leaf for leaf in tree_leaves(samples) if isinstance(leaf, Tensor)]
    try:
        for tensor in tensors if get_worker_info() else ():
            tensor.share_memory_()
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        return [
            LoaderProcessError(
                f"a loader process cannot pass a batch in shared memory ({reason}). Make "
                "/dev/shm larger (in a container with --shm-size), or set DATALOADER.NUM_WORKERS 0"
            )
        ]
    return samples


# Windows has neither SIGHUP nor signal masks.
_STOP_SIGNALS = {getattr(signal, n) for n in ("SIGTERM", "SIGHUP") if hasattr(signal, n)}
_HAS_MASKS = hasattr(signal, "pthread_sigmask")


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Handle signals after the block; processes that it starts inherit that they are blocked.

    A loader process would die from them before it has handlers, and exceptions of this process's
    handlers are lost while it starts one. Another thread of this process, where signals are not
    blocked, can still receive one, and Python then runs the handler in the main thread.
    """
    if not _HAS_MASKS:
        yield
        return
    signals = {*_STOP_SIGNALS, signal.SIGINT}
    received: list[int] = []
    handlers: dict[int, Any] = {}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        for number in signals:
            # Only the main thread can set handlers. None: one that Python did not set.
            is_main = threading.current_thread() is threading.main_thread()
            if is_main and signal.getsignal(number) not in (signal.SIG_IGN, None):
                handlers[number] = signal.signal(number, lambda n, frame: received.append(n))
        yield
    finally:
        try:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number in received:
            signal.raise_signal(number)


def _ignore_first_signal(worker: int) -> None:
    """Ignore the first signal, because the main process receives it too and reacts to it.

    A second signal, possibly from the main process, ends the loader process. Ctrl-C never does.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in _STOP_SIGNALS:
        signal.signal(number, lambda number, frame: signal.signal(number, signal.SIG_DFL))
    if _HAS_MASKS:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*_STOP_SIGNALS, signal.SIGINT})
