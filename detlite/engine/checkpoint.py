"""Checkpoints: read, checked against a model, written.

A checkpoint is one dict that `torch.load(weights_only=True)` reads: `model` (state dict),
`categories` (COCO categories; label k is categories[k - 1]), `config` (YAML text), `iteration`,
and, to go on with the training, `optimizer`, `scheduler`, `scaler`, `sampler` and `rng`.

Files of torchvision, detectron2, maskrcnn-benchmark and Caffe2's Detectron are converted as they
are read: `config` then says what their weights need, `unstated` which part of it a YAML file of
maskrcnn-benchmark leaves to its code, and `backbone_only` that a classifier wrote them.
"""

from __future__ import annotations

import logging
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..conversion import (
    Converted,
    convert,
    convert_timm,
    is_classifier,
    named_settings,
    source_of,
)
from ..pickles import RefusedPickleError, read_pickle

logger = logging.getLogger(__name__)

_LAST = "last_checkpoint"


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be read, or that does not fit the model."""


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Writes a checkpoint and notes it as the folder's last; both appear whole or not at all.

    Args:
        path: the file; its folder must exist.
        content: the dict that the head of this file describes.

    Raises:
        CheckpointError: a folder that cannot be written to, or a full disk.
    """
    write_checkpoint(path, content)
    _replace(path.with_name(_LAST), lambda temporary: temporary.write_text(path.name + "\n"))


def write_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Writes a checkpoint, whole or not at all, without noting it; see `save_checkpoint`."""
    _replace(path, lambda temporary: torch.save(content, temporary))


def last_checkpoint(folder: Path) -> Path | None:
    """The checkpoint that a run in `folder` saved last, or None when it saved none.

    Raises:
        CheckpointError: the folder's note of it names no file that is there.
    """
    note = folder / _LAST
    if not note.exists():
        return None
    name = note.read_text().strip()
    if not name or not (folder / name).is_file():
        raise CheckpointError(
            f"{note}: names {name!r}, and there is no such file: write the name of another "
            "checkpoint of this folder into it, or remove it to start anew"
        )
    return folder / name


def read_checkpoint(
    path: str | Path, source: str | None = None, timm_body: bool = False
) -> dict[str, Any]:
    """Reads a checkpoint, or a bare state dict, onto the CPU, executing nothing in it.

    Args:
        path: the file; one of another framework is converted.
        source: which framework that is (one of `conversion.SOURCES`); None: found by its names.
        timm_body: keep a classifier as timm calls it, for a body of timm, whatever its names say.

    Returns:
        The checkpoint's dict. `model` is always there, without the `module.` prefixes of
        DistributedDataParallel; `categories` too, empty when unknown.

    Raises:
        CheckpointError: a file that is missing, truncated or not a checkpoint, that holds pickled
            objects other than tensors, arrays and plain containers, or a model of another
            framework that cannot be converted.
    """
    content = _read(path)
    try:
        source, converted = _convert(content, source, timm_body)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    if converted is not None:
        logger.info("%s: converted from %s", path, source)
        content = {
            "model": converted.model,
            "categories": converted.categories,
            "unstated": converted.unstated,
            "backbone_only": converted.backbone_only,
        }
        if converted.settings:
            if source == "detectron2":
                converted.settings.update(named_settings(path))
            content["config"] = converted.config_text()
        return content
    if isinstance(content, dict) and "model" not in content:
        content = {"model": content}
    state = content["model"] if isinstance(content, dict) else None
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in state.items()
    ):
        raise CheckpointError(
            f"{path}: holds neither a state dict (names and tensors) nor {{'model': state dict}}"
        )
    if not state:
        raise CheckpointError(f"{path}: holds no entries")
    content["model"] = {name.removeprefix("module."): value for name, value in state.items()}
    content.setdefault("categories", [])
    return content


def _convert(
    content: Any, source: str | None, timm_body: bool
) -> tuple[str | None, Converted | None]:
    """Where a file's content comes from, and what it is converted; both None for our own."""
    if timm_body and is_classifier(content):
        return "timm", convert_timm(content)
    source = source or source_of(content)
    return source, None if source is None else convert(content, source)


def _read(path: str | Path) -> Any:
    """What a file of torch.save or a pickle of arrays holds."""
    try:
        if Path(path).suffix == ".pkl" and not zipfile.is_zipfile(path):
            return read_pickle(path)
        if Path(path).suffix == ".safetensors":
            return _read_safetensors(Path(path))
        return torch.load(path, map_location="cpu", weights_only=True)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    except ImportError as error:
        raise CheckpointError(f"{path}: needs a package: pip install safetensors") from error
    except RefusedPickleError as error:
        raise CheckpointError(_refusal(path, str(error))) from error
    # Whatever else torch raises depends on where the bytes stop making sense.
    except Exception as error:
        foreign = re.search(r"GLOBAL:? ([\w.]+)", str(error))
        if foreign:
            raise CheckpointError(_refusal(path, foreign[1])) from error
        raise CheckpointError(
            f"{path}: is not a checkpoint of torch.save, or is truncated or damaged"
        ) from error


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load

    return load(path.read_bytes())


def _refusal(path: str | Path, what: str) -> str:
    return (
        f"{path}: holds a pickled {what}, and unpickling objects can run any code; nothing was "
        "executed. Save tensors and plain containers alone, such as model.state_dict()"
    )


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    temporary = path.with_name(path.name + ".tmp")
    try:
        write(temporary)
        os.replace(temporary, path)
    # torch's own writer raises RuntimeError.
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            f"{path}: cannot be written ({str(error).splitlines()[0]}); the disk may be full, or "
            "the folder closed to you. What was saved before is as it was"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
