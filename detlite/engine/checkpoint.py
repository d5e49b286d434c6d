"""Checkpoints: read once, written atomically.

On disk a checkpoint is one dict that `torch.load(weights_only=True)` reads: `Checkpoint.model` and
the fields that `_ON_DISK` lists. A bare state dict is one too. Files of other frameworks are
converted as they are read.
"""

from __future__ import annotations

import logging
import os
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from ..conversion import convert, entries_of, source_of
from ..conversion.timm import timm_body
from ..pickles import RefusedPickleError, read_pickle

logger = logging.getLogger(__name__)

_LAST = "last_checkpoint"
_ON_DISK = ("categories", "config", "convention", "override", "backbone_only", "training")


@dataclass(frozen=True)
class Checkpoint:
    """Weights, and what is known about them; what is not is empty."""

    path: Path
    model: dict[str, Tensor]  # the state dict, by our names, on the CPU
    # COCO's {"id", "name"}; label k is categories[k - 1].
    categories: list[dict[str, Any]] = field(default_factory=list)
    config: str = ""  # YAML text of the config that the weights need
    convention: str = ""  # name of the one that they were trained by
    override: list[str] = field(default_factory=list)  # as MODEL.CONVENTION_OVERRIDE
    backbone_only: bool = False  # a classifier, of which detectors take the body
    training: dict[str, Any] = field(default_factory=dict)  # what `TrainingState` needs to go on
    # The same weights for a detector with a body of timm, whatever their names look like; empty
    # where they cannot be a classifier's.
    timm_body: dict[str, Tensor] = field(default_factory=dict)


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be read, or that does not fit the model."""


def save_checkpoint(checkpoint: Checkpoint, last: bool = True) -> None:
    """Writes a checkpoint to its path and, if `last`, notes it as the folder's last; atomically.

    Raises:
        CheckpointError: a folder that cannot be written to, or a full disk.
    """
    path = checkpoint.path
    write_content(path, {name: getattr(checkpoint, name) for name in ("model", *_ON_DISK)})
    if last:
        _replace(path.with_name(_LAST), lambda temporary: temporary.write_text(path.name + "\n"))


def write_content(path: Path, content: dict[str, Any]) -> None:
    """`torch.save`, atomic; see `save_checkpoint`."""
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


def read_checkpoint(path: str | Path, source: str | None = None) -> Checkpoint:
    """Reads a checkpoint, or a bare state dict, onto the CPU, executing nothing in it.

    Args:
        path: the file; one of another framework is converted.
        source: which framework that is, a key of `conversion.SOURCES`; None: found by its names.

    Raises:
        CheckpointError: a file that is missing, truncated or not a checkpoint, that holds pickled
            objects other than tensors, arrays and plain containers, or a model of another
            framework that cannot be converted.
    """
    path = Path(path)
    content = _read(path)
    source = source or source_of(content)
    entries = entries_of(content)
    body = timm_body(entries)
    if source is None:
        if not entries or not all(isinstance(value, Tensor) for value in entries.values()):
            raise CheckpointError(
                f"{path}: holds neither a state dict (names and tensors) nor "
                "{'model': state dict} with any entries"
            )
        bare = Checkpoint(path, entries, timm_body=body)
        # A field of another kind than ours is not ours.
        ours = [n for n in _ON_DISK if isinstance(content.get(n), type(getattr(bare, n)))]
        return replace(bare, **{name: content[name] for name in ours})
    try:
        fields = vars(convert(content, source, path))
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    logger.info("%s: converted from %s", path, source)
    config = yaml.safe_dump(fields["config"]) if fields["config"] else ""
    return Checkpoint(path, timm_body=body, **{**fields, "config": config})


def _read(path: Path) -> Any:
    """What a file of torch.save or a pickle of arrays holds."""
    try:
        if path.suffix == ".pkl" and not zipfile.is_zipfile(path):
            return read_pickle(path)
        if path.suffix == ".safetensors":
            from safetensors.torch import load  # of the extra dependencies

            return load(path.read_bytes())
        return torch.load(path, map_location="cpu", weights_only=True)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    except ImportError as error:
        raise CheckpointError(f"{path}: needs a package: pip install safetensors") from error
    except Exception as error:
        named = re.search(r"GLOBAL:? ([\w.]+)", str(error))  # as torch refuses what is no tensor
        if named or isinstance(error, RefusedPickleError):
            what = named[1] if named else error
            raise CheckpointError(
                f"{path}: holds a pickled {what}, and unpickling objects can run any code; nothing "
                "was executed. Save tensors and plain containers alone, such as model.state_dict()"
            ) from error
        # Whatever else torch raises depends on where the bytes stop making sense.
        raise CheckpointError(
            f"{path}: is not a checkpoint of torch.save, or is truncated or damaged"
        ) from error


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
