"""Detection in many pictures: reading, networks and what follows at the same time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor

from detlite.data.errors import DataError
from detlite.inference.predictor import LoadedImage, Prediction, Predictor
from detlite.structures.instances import Detections

P = TypeVar("P")
T = TypeVar("T")
Reading = tuple[int, Future[LoadedImage | DataError]]
Found = list[tuple[int, LoadedImage | DataError, Detections | None]]


def predict_stream(
    predictor: Predictor,
    pictures: Iterable[P],
    then: Callable[[int, Tensor, Prediction], T],
    batch_size: int = 1,
    threads: int = 2,
    load: Callable[[P], LoadedImage] | None = None,
) -> Iterator[T | DataError]:
    """Detects in pictures one after the other, in as little memory as a few of them take.

    Threads read and resize the next pictures and finish the last ones (masks are pasted, and what
    `then` does) while the network runs. On a CPU of several cores two batches are in the network at
    a time, each on half of the cores: what one does on a single core leaves none idle.

    Args:
        pictures: as a Predictor takes them, or as `load` does; may be endless.
        then: called with the place of a picture in `pictures`, the picture uint8 [3, H, W] and its
            prediction, in some thread, in any order.
        batch_size: so many pictures are run together, where those read ahead are of like size.
        threads: that read and finish.
        load: reads and resizes a picture, in some thread; None: `predictor.load`.

    Yields:
        For each picture, in order, what `then` returns, or the DataError of a file that cannot be
        read.
    """
    read: Callable[[Any], LoadedImage] = load or predictor.load
    source = enumerate(pictures)
    ahead, due = threads + 2 * batch_size, 0
    reading: deque[Reading] = deque()
    running: deque[Future[Found]] = deque()
    done: dict[int, Future[T | DataError]] = {}
    streams = predictor.streams
    with _ended(ThreadPoolExecutor(threads)) as pool, _networks(streams) as networks:
        while True:
            for place, picture in islice(source, ahead - len(reading)):
                reading.append((place, pool.submit(_load, read, picture)))
            while reading and len(running) < streams:
                running.append(networks.submit(_detect, predictor, _next(reading, batch_size)))
            while due in done and (done[due].done() or len(done) > ahead or not running):
                yield done.pop(due).result()
                due += 1
            if not running:
                return
            for place, loaded, found in running.popleft().result():
                done[place] = pool.submit(_finish, predictor, then, place, loaded, found)


@contextmanager
def _ended(pool: ThreadPoolExecutor) -> Iterator[ThreadPoolExecutor]:
    """The pool; in the end what it has not begun, as after Ctrl-C, is left out."""
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _networks(streams: int) -> Iterator[ThreadPoolExecutor]:
    """Threads, each of which has its share of the cores for what torch does in it."""
    cores = torch.get_num_threads()
    share = max(cores // streams, 1)
    try:
        with ThreadPoolExecutor(
            streams, initializer=torch.set_num_threads, initargs=(share,)
        ) as it:
            yield it
    finally:
        # The number is the thread's own, and besides that of all threads to come.
        torch.set_num_threads(cores)


def _load(read: Callable[[Any], LoadedImage], picture: Any) -> LoadedImage | DataError:
    try:
        return read(picture)
    except DataError as error:
        return error


def _next(reading: deque[Reading], batch_size: int) -> dict[int, LoadedImage | DataError]:
    """The first of what is read, by its place, and others of its size that are there already."""
    first, future = reading.popleft()
    loaded = future.result()
    batch = {first: loaded}
    if isinstance(loaded, DataError):
        return batch
    for place, other in list(reading):
        image = other.result() if other.done() else None
        if len(batch) < batch_size and isinstance(image, LoadedImage) and image.cells == loaded.cells:
            batch[place] = image
            reading.remove((place, other))
    return batch


def _detect(predictor: Predictor, batch: dict[int, LoadedImage | DataError]) -> Found:
    images = [image for image in batch.values() if isinstance(image, LoadedImage)]
    found = predictor.detect(images) if images else [None]
    return [(*one, detections) for one, detections in zip(batch.items(), found, strict=True)]


def _finish(
    predictor: Predictor,
    then: Callable[[int, Tensor, Prediction], T],
    place: int,
    loaded: LoadedImage | DataError,
    found: Detections | None,
) -> T | DataError:
    if isinstance(loaded, DataError):
        return loaded
    assert found is not None
    return then(place, loaded.original, predictor.to_prediction(found, loaded))
