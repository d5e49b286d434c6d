"""Detect objects in many images: read, run the network and finish results concurrently."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor

from detlite.files.errors import DataError
from detlite.inference.prediction import LoadedImage
from detlite.inference.predictor import Prediction, Predictor

T = TypeVar("T")
Read = tuple[int, LoadedImage | DataError]  # an image, with its index in the stream


def predict_stream(
    predictor: Predictor,
    images: Iterable[Any],
    finish: Callable[[int, Tensor, Prediction], T],
    batch_size: int = 1,
    threads: int = 2,
) -> Iterator[T | DataError]:
    """Detect objects in a stream of images, with only a few of them in memory.

    While the network runs, threads read and resize the next images, paste the masks of the last
    ones and call `finish`. On a CPU with several cores, two batches run at a time, each on half of
    the cores, so that the single-threaded parts of one leave no core idle.

    Args:
        images: inputs of a Predictor, or a DataError for one that cannot be read; may be endless.
        finish: called with the index of an image in `images`, the image uint8 [C, H, W] and its
            prediction, in any thread and order.
        batch_size: number of images of similar size to run together, among the next ones.
        threads: number of threads that read and finish.

    Yields:
        For each image, in order, the value of `finish`, or the DataError of an unreadable file.
    """

    def read(item: tuple[int, Any]) -> Read:
        index, image = item
        try:
            return index, image if isinstance(image, DataError) else predictor.load(image)
        except DataError as error:
            return index, error

    def detect(batch: dict[int, Any]) -> list[tuple[int, Any, Any]]:
        unreadable = any(isinstance(image, DataError) for image in batch.values())
        found = [None] if unreadable else predictor.detect([*batch.values()])
        return [*zip(batch, batch.values(), found, strict=True)]

    def finish_one(detected: tuple[int, Any, Any]) -> tuple[int, T | DataError]:
        index, loaded, detections = detected
        if isinstance(loaded, DataError):
            return index, loaded
        return index, finish(index, loaded.original, predictor.to_prediction(detections, loaded))

    with ExitStack() as stack:
        pool = ThreadPoolExecutor(threads)
        stack.callback(pool.shutdown, cancel_futures=True)  # for example after Ctrl-C
        streams, cores = predictor.streams, torch.get_num_threads()
        # set_num_threads in one thread also changes the default of future threads.
        stack.callback(torch.set_num_threads, cores)
        cores_each = max(cores // streams, 1)
        networks = ThreadPoolExecutor(streams, "network", torch.set_num_threads, (cores_each,))
        stack.enter_context(networks)
        loaded = _ahead(pool, read, enumerate(images), threads + batch_size)
        batches = _similar_images(predictor, loaded, batch_size)
        detected = chain.from_iterable(_ahead(networks, detect, batches, streams))
        finished, next_index = dict[int, T | DataError](), 0
        for index, result in _ahead(pool, finish_one, detected, threads):
            finished[index] = result
            while next_index in finished:
                yield finished.pop(next_index)
                next_index += 1


def _ahead(
    pool: ThreadPoolExecutor, function: Callable[[Any], Any], items: Iterable[Any], count: int
) -> Iterator[Any]:
    """Yield the results of a function for items, in order, while the pool works on the next ones.

    `count` is the number of items that are in work while a result is used.
    """
    futures = deque[Future[Any]]()
    for item in items:
        futures.append(pool.submit(function, item))
        if len(futures) > count:
            yield futures.popleft().result()
    while futures:
        yield futures.popleft().result()


def _similar_images(
    predictor: Predictor, images: Iterable[Read], size: int
) -> Iterator[dict[int, Any]]:
    """Yield batches by index: up to `size` images, padded to the same size, or a DataError.

    An image waits for at most 2 * `size` others.
    """
    waiting: dict[Any, dict[int, Any]] = {}  # by padded size, the one of the first image first
    for index, image in images:
        key = index if isinstance(image, DataError) else predictor.padded_size(image)
        waiting.setdefault(key, {})[index] = image
        if key == index or len(waiting[key]) == size:
            yield waiting.pop(key)
        oldest = next(iter(waiting), None)
        if oldest is not None and index - next(iter(waiting[oldest])) >= 2 * size:
            yield waiting.pop(oldest)
    yield from waiting.values()
