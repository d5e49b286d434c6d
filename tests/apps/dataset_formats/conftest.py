"""Write the images and text files of small datasets."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Write = Callable[..., Path]


@pytest.fixture
def image() -> Write:
    """Return `image(path, height, width)`, which writes a noisy image and its folders."""

    def write(path: Path, height: int = 40, width: int = 60) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng([*str(path.relative_to(path.parents[1])).encode()])
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
        return path

    return write


@pytest.fixture
def text() -> Write:
    """Return `text(path, content)`, which writes a file and its folders."""

    def write(path: Path, content: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    return write


@pytest.fixture
def folder(tmp_path: Path, image: Write, text: Write) -> Write:
    """Return `folder(files)`, which writes files, and returns their folder, `tmp_path`.

    The content of each is a text, the pixels of an image, or None for a noisy image of 60 x 40.
    """

    def write(files: dict[str, str | np.ndarray | None]) -> Path:
        for name, content in files.items():
            if content is None:
                image(tmp_path / name)
            elif isinstance(content, str):
                text(tmp_path / name, content)
            else:
                (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(content).save(tmp_path / name)
        return tmp_path

    return write


@pytest.fixture
def yolo_folder(tmp_path: Path, image: Write, text: Write) -> Path:
    """Write a YOLO dataset of ten images of a cat."""
    for number in range(10):
        image(tmp_path / f"set/images/{number}.jpg")
        text(tmp_path / f"set/labels/{number}.txt", "0 0.5 0.5 0.2 0.2\n")
    text(tmp_path / "set/data.yaml", "names: [cat]\n")
    return tmp_path / "set"
