"""Batch the images of concurrent requests."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from detlite.inference.prediction import ImageInput, LoadedImage
from detlite.inference.predictor import Prediction, Predictor
from detlite.structures.instances import Detections

T = TypeVar("T")


class Batcher:
    """Decodes images, runs the network and postprocesses detections, each in its own threads.

    While the network runs, decoded images wait. The next batch consists of waiting images of
    similar size; a single image does not wait for others. At most two batches of decoded images are
    in memory: one in the network and one waiting. `on_batch` is called with the number of images
    and the seconds of each batch.
    """

    def __init__(
        self, predictor: Predictor, max_batch: int, on_batch: Callable[[int, float], None]
    ) -> None:
        self._predictor = predictor
        self._max_batch = max_batch
        self._on_batch = on_batch
        self._slots = asyncio.Semaphore(2 * max_batch)
        self._waiting: list[tuple[LoadedImage, asyncio.Future[Detections]]] = []
        self._arrived = asyncio.Event()
        self._cpu_threads = ThreadPoolExecutor(2, "images")
        self._network_thread = ThreadPoolExecutor(1, "network")

    async def predict(
        self, image: ImageInput, convert: Callable[[LoadedImage, Prediction], T]
    ) -> T:
        """Return the result of `convert`, called in a thread with the image and its prediction.

        Cancelling the call removes the image from the queue. Raises errors of reading the image,
        and errors of the model on its batch.
        """
        loop, predictor = asyncio.get_running_loop(), self._predictor

        def finish(loaded: LoadedImage, detections: Detections) -> T:
            return convert(loaded, predictor.to_prediction(detections, loaded))

        async with self._slots:
            loaded = await loop.run_in_executor(self._cpu_threads, predictor.load, image)
            future: asyncio.Future[Detections] = loop.create_future()
            self._waiting.append((loaded, future))
            self._arrived.set()
            detections = await future
            return await loop.run_in_executor(self._cpu_threads, finish, loaded, detections)

    async def run(self) -> None:
        """Run the network on batch after batch, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            batch = self._next_batch()
            if not batch:
                self._arrived.clear()
                continue
            start = time.perf_counter()
            images = [loaded for loaded, _ in batch]
            detect = self._predictor.detect
            try:
                results = await loop.run_in_executor(self._network_thread, detect, images)
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            self._on_batch(len(batch), time.perf_counter() - start)
            for (_, future), detections in zip(batch, results, strict=True):
                if not future.done():  # otherwise, the request was cancelled
                    future.set_result(detections)

    def close(self) -> None:
        """End the threads after their current work."""
        self._cpu_threads.shutdown(cancel_futures=True)
        self._network_thread.shutdown(cancel_futures=True)

    def _next_batch(self) -> list[tuple[LoadedImage, asyncio.Future[Detections]]]:
        """Remove the oldest image, and others of the same padded size, from the queue."""
        waiting = [pair for pair in self._waiting if not pair[1].done()]
        padded_size = self._predictor.padded_size
        similar = [pair for pair in waiting if padded_size(pair[0]) == padded_size(waiting[0][0])]
        batch = similar[: self._max_batch]
        taken = {id(future) for _, future in batch}
        self._waiting = [pair for pair in waiting if id(pair[1]) not in taken]
        return batch
