"""Write the images and text files of small datasets."""

from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from PIL import Image

from tests.builders import write_noise, write_text

Write = Callable[..., Path]


@pytest.fixture
def image() -> Write:
    """Return `image(path, height, width)`, which writes a noisy image and its folders."""

    def write(path: Path, height: int = 40, width: int = 60) -> Path:
        name = str(path.relative_to(path.parents[1]))
        return write_noise(path, height, width, seed=crc32(name.encode()))

    return write


@pytest.fixture
def text() -> Write:
    """Return `text(path, content)`, which writes a file and its folders."""
    return write_text


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
