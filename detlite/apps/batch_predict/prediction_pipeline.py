"""Detect objects in many images: read, run the network and finish results concurrently."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor

from detlite.files.errors import DataError
from detlite.inference.prediction import LoadedImage
from detlite.inference.predictor import Prediction, Predictor
from detlite.structures.instances import Detections

T = TypeVar("T")
Reading = tuple[int, Future[LoadedImage | DataError]]
Batch = dict[int, LoadedImage]  # by index


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
        images: inputs of a Predictor; may be endless.
        finish: called with the index of an image in `images`, the image uint8 [3, H, W] and its
            prediction, in any thread and order.
        batch_size: number of images of similar size to run together, among those already read.
        threads: number of threads that read and finish.

    Yields:
        For each image, in order, the value of `finish`, or the DataError of an unreadable file.
    """

    def read(image: Any) -> LoadedImage | DataError:
        try:
            return predictor.load(image)
        except DataError as error:
            return error

    def finish_one(index: int, loaded: LoadedImage, detections: Detections) -> T:
        return finish(index, loaded.original, predictor.to_prediction(detections, loaded))

    source = enumerate(images)
    max_ahead, next_index = threads + 2 * batch_size, 0
    reading: deque[Reading] = deque()
    running: deque[tuple[Batch, Future[list[Detections]]]] = deque()
    finishing: dict[int, Future[Any]] = {}
    streams = predictor.streams
    with ExitStack() as stack:
        pool = ThreadPoolExecutor(threads)
        stack.callback(pool.shutdown, cancel_futures=True)  # for example after Ctrl-C
        networks = stack.enter_context(_network_threads(streams))
        while True:
            for index, image in islice(source, max_ahead - len(reading)):
                reading.append((index, pool.submit(read, image)))
            if not (reading or running or finishing):
                return
            while reading and len(running) < streams:
                index, future = reading.popleft()
                loaded = future.result()
                if isinstance(loaded, DataError):
                    finishing[index] = future
                else:
                    similar = _similar_images(predictor, loaded, reading, batch_size - 1)
                    batch = {index: loaded} | similar
                    detecting = networks.submit(predictor.detect, list(batch.values()))
                    running.append((batch, detecting))
            while next_index in finishing and (
                finishing[next_index].done() or len(finishing) > max_ahead or not running
            ):
                yield finishing.pop(next_index).result()
                next_index += 1
            if running:
                batch, detecting = running.popleft()
                for (index, loaded), found in zip(batch.items(), detecting.result(), strict=True):
                    finishing[index] = pool.submit(finish_one, index, loaded, found)


@contextmanager
def _network_threads(streams: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of threads that divide torch's cores among them."""
    cores = torch.get_num_threads()
    cores_each = max(cores // streams, 1)
    try:
        with ThreadPoolExecutor(
            streams, initializer=torch.set_num_threads, initargs=(cores_each,)
        ) as pool:
            yield pool
    finally:
        # set_num_threads in one thread also changes the default of future threads.
        torch.set_num_threads(cores)


def _similar_images(
    predictor: Predictor, loaded: LoadedImage, reading: deque[Reading], count: int
) -> Batch:
    """Remove up to `count` images from `reading` that are read and padded to the same size."""
    size, batch = predictor.padded_size(loaded), Batch()
    for index, future in list(reading):
        image = future.result() if future.done() and len(batch) < count else None
        if isinstance(image, LoadedImage) and predictor.padded_size(image) == size:
            batch[index] = image
            reading.remove((index, future))
    return batch
