"""Which requests share a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from detlite.inference.predictor import Predictor

pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")

from detlite.apps.serve.batching import Batcher


def predict_all(
    predictor: Predictor, size: int, pictures: list[bytes], reported: list[int]
) -> list[tuple[int, int]]:
    """Predicts pictures that arrive at once, while the first one of them is in the network."""

    async def go() -> list[tuple[int, int]]:
        batcher = Batcher(predictor, size, lambda count, seconds: reported.append(count))
        running = asyncio.create_task(batcher.run())
        tasks = []
        for picture in pictures:
            tasks.append(asyncio.create_task(batcher.predict(picture, lambda x, _: x.size)))
            while not predictor.model.batches:
                await asyncio.sleep(0.01)
        while len(batcher._waiting) < min(len(pictures), 2 * size) - 1:  # all that may be decoded
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # for more than may be
        predictor.model.gate.set()
        found = await asyncio.gather(*tasks)
        running.cancel()
        batcher.close()
        return found

    predictor.model.gate.clear()
    return asyncio.run(asyncio.wait_for(go(), 60))


def test_what_waits_together_is_predicted_together(
    predictor: Predictor, picture: Callable[..., bytes]
) -> None:
    reported: list[int] = []
    found = predict_all(predictor, 4, [picture()] * 6, reported)
    assert found == [(60, 120)] * 6
    assert reported == [len(batch) for batch in predictor.model.batches] == [1, 4, 1]


def test_a_batch_is_of_like_size_and_goes_by_age(
    predictor: Predictor, picture: Callable[..., bytes]
) -> None:
    sizes = [(60, 120), (60, 60), (60, 120), (60, 61), (60, 122)]
    found = predict_all(predictor, 4, [picture(*size) for size in sizes], [])
    assert found == sizes
    batches = predictor.model.batches
    assert batches[0] == [(60, 120)]
    assert {frozenset(batch) for batch in batches[1:]} == {
        frozenset({(60, 60), (60, 61)}), frozenset({(60, 120), (60, 122)}),
    }  # fmt: skip


def test_few_pictures_are_decoded_at_a_time(
    predictor: Predictor, picture: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    while_closed, load = [], predictor.load

    def count(data: Any) -> Any:
        while_closed.append(not predictor.model.gate.is_set())
        return load(data)

    monkeypatch.setattr(predictor, "load", count)
    predict_all(predictor, 2, [picture()] * 9, [])
    assert len(while_closed) == 9
    assert sum(while_closed) == 4  # one batch in the network and one that waits
