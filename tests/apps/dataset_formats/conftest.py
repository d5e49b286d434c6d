"""Pictures and text files of small data sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def picture() -> Callable[..., Path]:
    """`picture(path, height, width)`: writes a noisy picture, and its folders."""

    def write(path: Path, height: int = 40, width: int = 60) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
        return path

    return write


@pytest.fixture
def text() -> Callable[[Path, str], Path]:
    """`text(path, content)`: writes a file, and its folders."""

    def write(path: Path, content: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    return write
