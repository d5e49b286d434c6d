"""Read and write checkpoints.

A checkpoint is a dict that `torch.load(weights_only=True)` reads: the state dict under "model", and
the fields in `_FIELDS`. A bare state dict is also read. Files of other frameworks are converted.
Torch stores a CRC-32 of every record but does not check it, so reading checks it here.
"""

import logging
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from detlite.atomic_write import atomic_open, atomic_path
from detlite.conversion import convert, detect_source, find_state_dict
from detlite.conversion.timm import TIMM_PREFIX, as_timm_backbone
from detlite.data.file_type import explain_not_downloaded
from detlite.data.safe_pickle import RefusedPickleError, load_weights_only, read_pickle

logger = logging.getLogger(__name__)

LAST_CHECKPOINT_FILE = "last_checkpoint"  # holds the name of the checkpoint that a run saved last
_FIELDS = ("categories", "config", "convention", "override", "backbone_only", "training")

# Checks of the items of a field.
_ITEM_CHECKS: dict[str, Callable[[Any], bool]] = {
    "categories": lambda rows: all(
        isinstance(row, dict) and type(row.get("id")) is int and isinstance(row.get("name"), str)
        for row in rows
    ),
    "override": lambda fields: all(isinstance(item, str) for item in fields),
}


@dataclass(frozen=True)
class Checkpoint:
    """Weights with what is known about their model. Unknown fields are empty.

    Attributes:
        path: the file.
        model: the state dict, on the CPU.
        categories: COCO's {"id", "name"}; label k is categories[k - 1].
        config: YAML text of the config of the model.
        convention: name of the convention the model was trained with.
        override: value of MODEL.CONVENTION_OVERRIDE.
        backbone_only: the weights of a classifier, which a detector uses as backbone.
        training: the state of the trainer, to resume from.
        timm_backbone: the weights of a classifier renamed for a timm backbone.
    """

    path: Path
    model: dict[str, Tensor]
    categories: list[dict[str, Any]] = field(default_factory=list)
    config: str = ""
    convention: str = ""
    override: list[str] = field(default_factory=list)
    backbone_only: bool = False
    training: dict[str, Any] = field(default_factory=dict)
    timm_backbone: dict[str, Tensor] = field(default_factory=dict)


class CheckpointError(RuntimeError):
    """A checkpoint cannot be read or written, or does not fit the model."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint is truncated or has changed since it was written."""


def save_checkpoint(checkpoint: Checkpoint, last: bool = True) -> None:
    """Write a checkpoint to its path atomically and, if `last`, record it as the folder's last.

    Raises:
        CheckpointError: the folder is not writable, or the disk is full.
    """
    path = checkpoint.path
    save_torch_file(path, {name: getattr(checkpoint, name) for name in ("model", *_FIELDS)})
    if last:
        pointer = path.with_name(LAST_CHECKPOINT_FILE)
        with _explain_write_errors(pointer), atomic_open(pointer) as file:
            file.write(path.name + "\n")


def save_torch_file(path: Path, content: dict[str, Any]) -> None:
    """Call `torch.save` atomically; raises as `save_checkpoint`."""
    with _explain_write_errors(path), atomic_path(path) as temporary:
        torch.save(content, temporary)


@contextmanager
def _explain_write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # torch raises RuntimeError
        text = getattr(error, "strerror", None) or f"cannot be written ({error})"
        raise CheckpointError(
            f"{path}: {text.splitlines()[0]}. Free disk space, or check the permissions of the "
            "folder. Files saved before are unchanged"
        ) from error


def read_checkpoint(path: str | Path, source: str | None = None) -> Checkpoint:
    """Read a checkpoint or a bare state dict onto the CPU, without executing code in it.

    Args:
        path: the file.
        source: the framework, a key of `conversion.SOURCES`; None: detected from the weights.

    Raises:
        DamagedCheckpointError: the file is no checkpoint, truncated or damaged.
        CheckpointError: the file is missing, contains pickled objects other than tensors, arrays
            and plain containers, has weights without values, or cannot be converted.
    """
    path = Path(path)
    content = _load(path)
    source = source or detect_source(content)
    state = find_state_dict(content)
    timm_backbone = as_timm_backbone(state)
    if source is None:
        if not state or not all(isinstance(value, Tensor) for value in state.values()):
            raise CheckpointError(
                f"{path}: holds neither a state dict (names and tensors) nor "
                "{'model': state dict} with any entries"
            )
        if meta := next((name for name, value in state.items() if value.is_meta), None):
            raise CheckpointError(
                f"{path}: {meta} is on the device 'meta' and has no values: save the model after "
                "its weights were loaded"
            )
        return replace(
            Checkpoint(path, state), timm_backbone=timm_backbone, **_read_fields(content, path)
        )
    try:
        fields = vars(convert(content, source, path))
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    logger.info("%s: converted from %s", path, source)
    config = yaml.safe_dump(fields["config"]) if fields["config"] else ""
    if any(name.startswith(TIMM_PREFIX) for name in fields["model"]):
        timm_backbone = {}  # the state dict is that of a timm backbone already
    return Checkpoint(path, timm_backbone=timm_backbone, **{**fields, "config": config})


def _read_fields(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the fields of the right type; others belong to a foreign file."""
    defaults = Checkpoint(path, {})
    valid = {
        name: isinstance(content.get(name), type(getattr(defaults, name)))
        and (name not in _ITEM_CHECKS or _ITEM_CHECKS[name](content[name]))
        for name in _FIELDS
    }
    invalid = [name for name in _FIELDS if not valid[name]]
    if invalid and content.keys() >= set(_FIELDS):
        raise DamagedCheckpointError(f"{path}: is damaged: its {invalid[0]!r} has a wrong type")
    return {name: content[name] for name in _FIELDS if valid[name]}


def _load(path: Path) -> Any:
    """Load a file of torch.save, safetensors, or a pickle of arrays."""
    try:
        if path.suffix == ".pkl" and not zipfile.is_zipfile(path):
            return read_pickle(path)
        if path.suffix == ".safetensors":
            from safetensors.torch import load  # an optional dependency

            return load(path.read_bytes())
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as records:
                damaged = records.testzip()
            if damaged is not None:
                raise DamagedCheckpointError(
                    f"{path}: is damaged: the checksum of record {damaged} is wrong. If the file "
                    "was saved without checksums (torch.serialization.set_crc32_options), save it "
                    "again"
                )
        return load_weights_only(path)
    except CheckpointError:
        raise
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    except ImportError as error:
        raise CheckpointError(f"{path}: needs a package: pip install safetensors") from error
    except Exception as error:
        refused = re.search(r"GLOBAL:? ([\w.]+)", str(error))  # torch's message
        if refused or isinstance(error, RefusedPickleError):
            raise CheckpointError(
                f"{path}: holds a pickled {refused[1] if refused else error}, and unpickling "
                "objects can run any code; nothing was executed. Save tensors and plain containers "
                "alone, such as model.state_dict()"
            ) from error
        # Damage raises many other exceptions.
        with path.open("rb") as file:
            hint = explain_not_downloaded(file.read(1024))
        raise DamagedCheckpointError(
            f"{path}: is not a checkpoint of torch.save, or is truncated or damaged"
            f"{'; ' if hint else ''}{hint}"
        ) from error
