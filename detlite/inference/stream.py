"""Detection in many pictures: reading, network and what follows at the same time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

from torch import Tensor

from ..data.errors import DataError
from ..structures.instances import Detections
from .predictor import Loaded, Prediction, Predictor

P = TypeVar("P")
T = TypeVar("T")
Reading = tuple[int, Future[Loaded | DataError]]


def predict_stream(
    predictor: Predictor,
    pictures: Iterable[P],
    then: Callable[[int, Tensor, Prediction], T],
    batch_size: int = 1,
    threads: int = 2,
    load: Callable[[P], Loaded] | None = None,
) -> Iterator[T | DataError]:
    """Detects in pictures one after the other, in as little memory as a few of them take.

    Threads read and resize the next pictures and finish the last ones (masks are pasted, and what
    `then` does) while the network runs.

    Args:
        pictures: as a Predictor takes them, or as `load` does; may be endless.
        then: called with the place of a picture in `pictures`, the picture uint8 [3, H, W] and its
            prediction, in some thread, in any order.
        batch_size: so many pictures are run together, where those read ahead are of like size.
        threads: beside the one that calls.
        load: reads and resizes a picture, in some thread; None: `predictor.load`.

    Yields:
        For each picture, in order, what `then` returns, or the DataError of a file that cannot be
        read.
    """
    read: Callable[[Any], Loaded] = load or predictor.load
    source = enumerate(pictures)
    ahead, due = threads + 2 * batch_size, 0
    reading: deque[Reading] = deque()
    done: dict[int, Future[T | DataError]] = {}
    with ThreadPoolExecutor(threads) as pool:
        while True:
            for place, picture in islice(source, ahead - len(reading)):
                reading.append((place, pool.submit(_load, read, picture)))
            while due in done and (done[due].done() or len(done) > ahead or not reading):
                yield done.pop(due).result()
                due += 1
            if not reading:
                return
            for place, loaded, found in _next(predictor, reading, batch_size):
                done[place] = pool.submit(_finish, predictor, then, place, loaded, found)


def _load(read: Callable[[Any], Loaded], picture: Any) -> Loaded | DataError:
    try:
        return read(picture)
    except DataError as error:
        return error


def _next(
    predictor: Predictor, reading: deque[Reading], batch_size: int
) -> Iterator[tuple[int, Loaded | DataError, Detections | None]]:
    """Detects in the first of what is read, and in others of its size that are there already."""
    first, future = reading.popleft()
    loaded = future.result()
    if isinstance(loaded, DataError):
        yield first, loaded, None
        return
    batch = {first: loaded}
    for place, other in list(reading):
        image = other.result() if other.done() else None
        if len(batch) < batch_size and isinstance(image, Loaded) and image.cells == loaded.cells:
            batch[place] = image
            reading.remove((place, other))
    found = predictor.detect(list(batch.values()))
    for (place, image), detections in zip(batch.items(), found, strict=True):
        yield place, image, detections


def _finish(
    predictor: Predictor,
    then: Callable[[int, Tensor, Prediction], T],
    place: int,
    loaded: Loaded | DataError,
    found: Detections | None,
) -> T | DataError:
    if isinstance(loaded, DataError):
        return loaded
    assert found is not None
    return then(place, loaded.picture, predictor.in_picture(found, loaded))
