"""Fixtures: a service around a model that detects a bright square."""

import asyncio
import io
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from PIL import Image

from detlite.data.images.pixels import ImageOptions
from detlite.inference.options import InferenceOptions
from detlite.inference.predictor import Predictor
from tests.builders import BrightSquare, square_image

OPTIONS = InferenceOptions(images=ImageOptions(max_pixels=1_000_000))


@pytest.fixture
def model() -> BrightSquare:
    return BrightSquare(keypoints=True)


@pytest.fixture
def predictor(model: BrightSquare) -> Predictor:
    return Predictor(model, 60, 1000, score_thresh=0.05, rle=True, options=OPTIONS)


def image_file(height: int = 60, width: int = 120, format: str = "PNG") -> bytes:
    """Return an image file with a bright square at x 20..60, y 10..50."""
    buffer = io.BytesIO()
    Image.fromarray(square_image(height, width)).save(buffer, format)
    return buffer.getvalue()


@pytest.fixture(name="image_file")
def image_file_fixture() -> Callable[..., bytes]:
    """Return the function `image_file(height, width, format)`."""
    return image_file


@pytest.fixture
def talk() -> Callable[..., Any]:
    """Return a function that starts an app and returns the result of `scenario(client)`."""
    httpx = pytest.importorskip("httpx")

    def run(app: Any, scenario: Callable[[Any], Awaitable[Any]]) -> Any:
        async def start() -> Any:
            transport = httpx.ASGITransport(app)
            async with (
                app.router.lifespan_context(app),
                httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
            ):
                return await scenario(client)

        return asyncio.run(start())

    return run
