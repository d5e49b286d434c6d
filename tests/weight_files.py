"""Fixtures that write files of weights, and build models from them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from detlite.checkpoint.loading import build_model_from_checkpoint


@pytest.fixture
def saved(tmp_path):
    """Return a function that writes the content of a checkpoint, and returns the file."""

    def save(content: Any, name: str = "w.pth") -> Path:
        torch.save(content, tmp_path / name)
        return tmp_path / name

    return save


@pytest.fixture
def built(saved):
    """Return a function that returns the config and the model of a checkpoint's content."""

    def build(content: Any, *opts: Any, name: str = "w.pth") -> tuple[Any, Any]:
        return build_model_from_checkpoint(saved(content, name), ["MODEL.DEVICE", "cpu", *opts])

    return build
