"""Requests that wait together, predicted together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from detlite.inference.images import ImageInput, LoadedImage
from detlite.inference.predictor import Prediction, Predictor
from detlite.structures.instances import Detections

T = TypeVar("T")


class Batcher:
    """Decodes, detects and finishes at the same time, in threads; used within one event loop.

    While the network runs, decoded pictures wait; then those of like size, up to `size` of them,
    are its next batch. A lone picture waits for nobody. At most `2 * size` pictures are decoded at
    a time: one batch in the network and one that waits.

    Args:
        predictor: what detects.
        size: the most pictures of a batch.
        report: called with the pictures and the seconds of each batch.
    """

    def __init__(
        self, predictor: Predictor, size: int, report: Callable[[int, float], None]
    ) -> None:
        self._predictor = predictor
        self._size = size
        self._report = report
        self._places = asyncio.Semaphore(2 * size)
        self._waiting: list[tuple[LoadedImage, asyncio.Future[Detections]]] = []
        self._arrived = asyncio.Event()
        self._hands = ThreadPoolExecutor(2, "pictures")
        self._network = ThreadPoolExecutor(1, "network")

    async def predict(self, picture: ImageInput, then: Callable[[LoadedImage, Prediction], T]) -> T:
        """What `then` makes, in some thread, of a picture and its prediction.

        A caller that is cancelled leaves the queue. Raises what reading the picture raises, and
        what the model raised on its batch.
        """
        loop, predictor = asyncio.get_running_loop(), self._predictor

        def finish(loaded: LoadedImage, found: Detections) -> T:
            return then(loaded, predictor.to_prediction(found, loaded))

        async with self._places:
            loaded = await loop.run_in_executor(self._hands, predictor.load, picture)
            future: asyncio.Future[Detections] = loop.create_future()
            self._waiting.append((loaded, future))
            self._arrived.set()
            found = await future
            return await loop.run_in_executor(self._hands, finish, loaded, found)

    async def run(self) -> None:
        """Detects in what waits, batch after batch, until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            batch = self._next()
            if not batch:
                self._arrived.clear()
                continue
            start = time.perf_counter()
            images = [loaded for loaded, _ in batch]
            try:
                found = await loop.run_in_executor(self._network, self._predictor.detect, images)
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            self._report(len(batch), time.perf_counter() - start)
            for (_, future), detections in zip(batch, found, strict=True):
                if not future.done():  # nobody waits for it any more
                    future.set_result(detections)

    def close(self) -> None:
        """Ends the threads, once they have done what they are at."""
        self._hands.shutdown(cancel_futures=True)
        self._network.shutdown(cancel_futures=True)

    def _next(self) -> list[tuple[LoadedImage, asyncio.Future[Detections]]]:
        """Takes the picture that has waited longest, and others of its size."""
        waiting = [pair for pair in self._waiting if not pair[1].done()]
        alike = [pair for pair in waiting if pair[0].cells == waiting[0][0].cells]
        batch = alike[: self._size]
        taken = {id(future) for _, future in batch}
        self._waiting = [pair for pair in waiting if id(pair[1]) not in taken]
        return batch
