"""Batch the images of concurrent requests."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from prometheus_client import Histogram

from detlite.inference.prediction import ImageInput, LoadedImage
from detlite.inference.predictor import Prediction, Predictor
from detlite.structures.instances import Detections

BATCH_SIZE = Histogram(
    "detlite_batch_images", "Images in a batch", buckets=(1, 2, 4, 8, 16, 32, 64)
)
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
BATCH_SECONDS = Histogram(
    "detlite_batch_seconds", "Time of the network for a batch", buckets=SECONDS
)


class Batcher:
    """Decodes images, runs the network and postprocesses detections, each in its own threads.

    While the network runs, decoded images wait. The next batch consists of waiting images of
    similar size; a single image does not wait for others. At most two batches of decoded images are
    in memory: one in the network and one waiting. Use it in `async with`.
    """

    def __init__(self, predictor: Predictor, max_batch: int) -> None:
        self._predictor = predictor
        self._max_batch = max_batch
        self._slots = asyncio.Semaphore(2 * max_batch)
        self._waiting: dict[asyncio.Future[Detections], LoadedImage] = {}  # oldest first
        self._arrived = asyncio.Event()
        self._cpu_threads = ThreadPoolExecutor(2, "images")
        self._network_thread = ThreadPoolExecutor(1, "network")

    async def __aenter__(self) -> None:
        """Start to run the network on batch after batch."""
        self._running = asyncio.create_task(self._run())

    async def __aexit__(self, *_: object) -> None:
        """Stop, and end the threads after their current work."""
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        self._cpu_threads.shutdown(cancel_futures=True)
        self._network_thread.shutdown(cancel_futures=True)

    @property
    def is_running(self) -> bool:
        """True while batches are processed."""
        return not self._running.done()

    async def predict(
        self, image: ImageInput, convert: Callable[[LoadedImage, Prediction], Any]
    ) -> Any:
        """Return the result of `convert`, called in a thread with the image and its prediction.

        Cancelling the call removes the image from the queue. Raises errors of reading the image,
        and errors of the model on its batch.
        """
        loop, predictor = asyncio.get_running_loop(), self._predictor

        def finish(detections: Detections) -> Any:
            return convert(loaded, predictor.to_prediction(detections, loaded))

        async with self._slots:
            loaded = await loop.run_in_executor(self._cpu_threads, self._load, image)
            future: asyncio.Future[Detections] = loop.create_future()
            future.add_done_callback(lambda done: self._waiting.pop(done, None))
            self._waiting[future] = loaded
            self._arrived.set()
            return await loop.run_in_executor(self._cpu_threads, finish, await future)

    def _load(self, image: ImageInput) -> LoadedImage:
        """Read and resize an image. Only the size of the original is kept."""
        loaded = self._predictor.load(image)
        if loaded.original is loaded.network_input:
            return loaded
        size_only = loaded.original.new_empty(1).expand(loaded.original.shape)
        return LoadedImage(size_only, loaded.network_input)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            batch = self._next_batch()
            if not batch:
                self._arrived.clear()
                continue
            BATCH_SIZE.observe(len(batch))
            images, detect = list(batch.values()), self._predictor.detect
            try:
                with BATCH_SECONDS.time():
                    results = await loop.run_in_executor(self._network_thread, detect, images)
            except Exception as error:
                for future in batch:
                    if not future.done():  # otherwise, the request was cancelled
                        future.set_exception(error)
                continue
            for future, detections in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(detections)

    def _next_batch(self) -> dict[asyncio.Future[Detections], LoadedImage]:
        """Remove the oldest image, and others of the same padded size, from the queue."""
        sizes = {f: self._predictor.padded_size(image) for f, image in self._waiting.items()}
        oldest = next(iter(sizes.values()), None)
        similar = [future for future, size in sizes.items() if size == oldest]
        return {future: self._waiting.pop(future) for future in similar[: self._max_batch]}
