"""Fixtures: a service around a model that detects a bright square."""

import asyncio
import io
import threading
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from detlite.conventions import CONVENTIONS
from detlite.inference.predictor import Predictor
from detlite.structures.instances import Detections


class BrightSquare(nn.Module):
    """Detects the bright square, and the whole image with a lower score, while `gate` is open."""

    categories = ({"id": 7, "name": "square"}, {"id": 90, "name": "image"})
    convention = CONVENTIONS["detlite"]
    normalizer = SimpleNamespace(divisibility=32)
    channels = 3
    mask_threshold = 0.5
    device = torch.device("cpu")
    takes_proposals = False
    resizes_images = False

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[tuple[int, ...]]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.fails = False

    def detect(self, images: list[Tensor], proposals: None, min_score: float) -> list[Detections]:
        self.batches.append([tuple(image.shape[1:]) for image in images])
        assert self.gate.wait(20)
        if self.fails:
            raise RuntimeError("out of memory")
        results = [self._detect(image) for image in images]
        return [detections[detections.scores >= min_score] for detections in results]

    def _detect(self, image: Tensor) -> Detections:
        height, width = image.shape[1:]
        y, x = torch.nonzero(image.float().mean(dim=0) > 127, as_tuple=True)
        square = [0, 0, width, height]  # of an image without a bright pixel
        if len(x):
            square = [int(x.min()), int(y.min()), int(x.max()) + 1, int(y.max()) + 1]
        return Detections(
            boxes=torch.tensor([square, [0, 0, width, height]], dtype=torch.float32),
            labels=torch.tensor([1, 2]),
            scores=torch.tensor([0.9, 0.3]),
            valid=torch.tensor([True, True]),
            mask_probs=torch.ones(2, 28, 28),
            keypoints=torch.tensor([[[30.0, 20, 1]], [[60.0, 30, 1]]]),
            keypoint_scores=torch.zeros(2, 1),
        )


@pytest.fixture
def model() -> BrightSquare:
    return BrightSquare()


@pytest.fixture
def predictor(model: BrightSquare) -> Predictor:
    return Predictor(model, 60, 1000, score_thresh=0.05, rle=True, max_pixels=1_000_000)


def image_file(height: int = 60, width: int = 120, format: str = "PNG") -> bytes:
    """Return an image file with a bright square at x 20..60, y 10..50."""
    array = np.zeros((height, width, 3), np.uint8)
    array[10:50, 20:60] = 255
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format)
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
                httpx.AsyncClient(transport=transport, base_url="http://test") as client,
            ):
                return await scenario(client)

        return asyncio.run(start())

    return run
