"""Test which uploads end if too many bodies are arriving."""

import asyncio
from typing import Any

import pytest

pytest.importorskip("starlette")

from detlite.apps.serve.limits import Refusal
from detlite.apps.serve.uploads import Uploads


async def slow() -> bytes:
    await asyncio.sleep(20)
    return b""


async def fast() -> bytes:
    return b"image"


def start(uploads: Uploads, client: str) -> asyncio.Task[bytes]:
    return asyncio.ensure_future(uploads.receive(client, slow()))


def test_stuck_uploads_do_not_keep_others_out():
    async def scenario() -> list[Any]:
        uploads = Uploads(3)
        held = [start(uploads, client) for client in ("polite", "greedy", "greedy")]
        await asyncio.sleep(0)
        body = await uploads.receive("other", fast())
        await asyncio.sleep(0)
        states = [task.done() for task in held]
        error = held[1].exception()
        held[0].cancel()
        results = await asyncio.gather(*held[:1], return_exceptions=True)
        held[2].cancel()
        return [body, states, error, *results]

    body, states, error, stopped = asyncio.run(scenario())
    assert body == b"image"
    assert states == [False, True, False]  # the oldest of the client with the most
    assert isinstance(error, Refusal)
    assert (error.status_code, error.detail) == (503, "more than 3 images are arriving")
    assert isinstance(stopped, asyncio.CancelledError)


def test_errors_of_bodies_are_raised():
    async def fail() -> bytes:
        raise Refusal(413, "too long")

    async def scenario() -> None:
        uploads = Uploads(1)
        for _ in range(3):
            with pytest.raises(Refusal, match="too long"):
                await uploads.receive("a", fail())
        assert await uploads.receive("a", fast()) == b"image"

    asyncio.run(scenario())
