"""Test which requests share a batch."""

import asyncio
from typing import Any

import pytest

from detlite.inference.predictor import Predictor

pytest.importorskip("prometheus_client")

from detlite.apps.serve.batching import Batcher


def predict_all(predictor: Predictor, max_batch: int, images: list[bytes]) -> list[tuple[int, int]]:
    """Predict images that arrive while the first one is in the network; return their sizes."""

    async def run() -> list[tuple[int, int]]:
        batcher, tasks = Batcher(predictor, max_batch), []
        async with batcher:
            for image in images:
                tasks.append(asyncio.create_task(batcher.predict(image, lambda x, _: x.size)))
                while not predictor.model.sizes:
                    await asyncio.sleep(0.01)
            while len(batcher._waiting) < min(len(images), 2 * max_batch) - 1:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)  # enough time to decode too many
            predictor.model.gate.set()
            return await asyncio.gather(*tasks)

    predictor.model.gate.clear()
    return asyncio.run(asyncio.wait_for(run(), 60))


def test_waiting_images_share_a_batch(predictor, image_file):
    assert predict_all(predictor, 4, [image_file()] * 6) == [(60, 120)] * 6
    assert [len(batch) for batch in predictor.model.sizes] == [1, 4, 1]


def test_batches_have_similar_sizes_and_start_with_the_oldest(predictor, image_file):
    sizes = [(60, 120), (60, 60), (60, 120), (60, 61), (60, 122)]
    assert predict_all(predictor, 4, [image_file(*size) for size in sizes]) == sizes
    batches = predictor.model.sizes
    assert batches[0] == [(60, 120)]
    assert {frozenset(batch) for batch in batches[1:]} == {
        frozenset({(60, 60), (60, 61)}), frozenset({(60, 120), (60, 122)}),
    }  # fmt: skip


def test_few_images_are_decoded_at_a_time(predictor, image_file, monkeypatch):
    decoded_while_closed, load = [], predictor.load

    def count(data: Any) -> Any:
        decoded_while_closed.append(not predictor.model.gate.is_set())
        return load(data)

    monkeypatch.setattr(predictor, "load", count)
    predict_all(predictor, 2, [image_file()] * 9)
    assert len(decoded_while_closed) == 9
    assert sum(decoded_while_closed) == 4  # one batch in the network and one that waits
