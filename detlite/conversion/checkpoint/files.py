"""Checkpoints: read once, written atomically.

On disk a checkpoint is one dict that `torch.load(weights_only=True)` reads: `Checkpoint.model` and
the fields that `_ON_DISK` lists. A bare state dict is one too. Files of other frameworks are
converted as they are read. `torch.save` writes a CRC-32 of every record, which it does not look at
itself when it loads: it is checked here.
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

from detlite.conversion import convert, entries_of, source_of
from detlite.conversion.timm import BODY as TIMM_BODY
from detlite.conversion.timm import timm_body
from detlite.data.file_type import stored_elsewhere
from detlite.data.safe_pickle import RefusedPickleError, load_weights_only, read_pickle

logger = logging.getLogger(__name__)

LAST = "last_checkpoint"  # the file that names the one that a run saved last
_ON_DISK = ("categories", "config", "convention", "override", "backbone_only", "training")

# What else must hold of a field of the right type.
_ITEMS: dict[str, Callable[[Any], bool]] = {
    "categories": lambda rows: all(
        isinstance(row, dict) and type(row.get("id")) is int and isinstance(row.get("name"), str)
        for row in rows
    ),
    "override": lambda fields: all(isinstance(item, str) for item in fields),
}


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


class DamagedCheckpointError(CheckpointError):
    """A checkpoint that is truncated, or not what was written any more."""


def save_checkpoint(checkpoint: Checkpoint, last: bool = True) -> None:
    """Writes a checkpoint to its path and, if `last`, notes it as the folder's last; atomically.

    Raises:
        CheckpointError: a folder that cannot be written to, or a full disk.
    """
    path = checkpoint.path
    write_content(path, {name: getattr(checkpoint, name) for name in ("model", *_ON_DISK)})
    if last:
        replace_file(path.with_name(LAST), lambda temporary: temporary.write_text(path.name + "\n"))


def write_content(path: Path, content: dict[str, Any]) -> None:
    """`torch.save`, atomic; see `save_checkpoint`."""
    replace_file(path, lambda temporary: torch.save(content, temporary))


def read_checkpoint(path: str | Path, source: str | None = None) -> Checkpoint:
    """Reads a checkpoint, or a bare state dict, onto the CPU, executing nothing in it.

    Args:
        path: the file; one of another framework is converted.
        source: which framework that is, a key of `conversion.SOURCES`; None: found by its names.

    Raises:
        DamagedCheckpointError: a file that is not a checkpoint, truncated, or damaged inside.
        CheckpointError: one that is missing, that holds pickled objects other than tensors, arrays
            and plain containers, weights without values, or a model of another framework that
            cannot be converted.
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
        without = next((name for name, value in entries.items() if value.is_meta), None)
        if without is not None:
            raise CheckpointError(
                f"{path}: {without} is on the device 'meta' and has no values: save the model "
                "after its weights were loaded"
            )
        return replace(Checkpoint(path, entries, timm_body=body), **_fields(content, path))
    try:
        fields = vars(convert(content, source, path))
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    logger.info("%s: converted from %s", path, source)
    config = yaml.safe_dump(fields["config"]) if fields["config"] else ""
    if any(name.startswith(TIMM_BODY) for name in fields["model"]):
        body = {}  # it is timm's already
    return Checkpoint(path, timm_body=body, **{**fields, "config": config})


def _fields(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """What else a file of ours holds; a field of another kind than ours is not ours."""
    blank = Checkpoint(path, {})
    sound = {
        name: isinstance(content.get(name), type(getattr(blank, name)))
        and (name not in _ITEMS or _ITEMS[name](content[name]))
        for name in _ON_DISK
    }
    unsound = [name for name in _ON_DISK if not sound[name]]
    if unsound and content.keys() >= set(_ON_DISK):
        raise DamagedCheckpointError(f"{path}: is damaged: its {unsound[0]!r} is not what we write")
    return {name: content[name] for name in _ON_DISK if sound[name]}


def _read(path: Path) -> Any:
    """What a file of torch.save or a pickle of arrays holds."""
    try:
        if path.suffix == ".pkl" and not zipfile.is_zipfile(path):
            return read_pickle(path)
        if path.suffix == ".safetensors":
            from safetensors.torch import load  # of the extra dependencies

            return load(path.read_bytes())
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as records:
                damaged = records.testzip()
            if damaged is not None:
                raise DamagedCheckpointError(
                    f"{path}: is damaged: the record {damaged} does not have its checksum. If the "
                    "file was saved without (torch.serialization.set_crc32_options), save it again"
                )
        return load_weights_only(path)
    except CheckpointError:
        raise
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
        with path.open("rb") as file:
            what = stored_elsewhere(file.read(1024))
        raise DamagedCheckpointError(
            f"{path}: is not a checkpoint of torch.save, or is truncated or damaged"
            f"{'; ' if what else ''}{what}"
        ) from error


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Puts what `write` writes in the place of a file, whole or not at all.

    Raises:
        CheckpointError: a folder that cannot be written to, or a full disk.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        write(temporary)
        # Else the name may reach the disk before the content, and a power failure between them.
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    # torch's own writer raises RuntimeError.
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            f"{path}: cannot be written ({str(error).splitlines()[0]}); the disk may be full, or "
            "the folder closed to you. What was saved before is as it was"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
