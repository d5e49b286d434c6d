"""Read and write checkpoints.

A checkpoint is a dict that `torch.load(weights_only=True)` reads: the state dict under "model", and
the fields in `_FIELDS`. A bare state dict is also read. Files of other frameworks are converted.
Torch stores a CRC-32 of every record but does not check it, so reading checks it here.
"""

import logging
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from detlite.checkpoint.file_kinds import explain_kind
from detlite.conversion.convert import Checkpoint, as_tensors, convert, detect_source, unwrap
from detlite.conversion.timm import TIMM_PREFIX, as_timm_backbone
from detlite.files.atomic_write import atomic_open, atomic_path
from detlite.files.errors import RefusedFileError, RefusedPickleError
from detlite.files.reading import check_regular, open_stored_zip
from detlite.files.safe_pickle import load_weights_only, read_pickle

logger = logging.getLogger(__name__)

LAST_CHECKPOINT_FILE = "last_checkpoint"  # contains the file name of a run's last checkpoint
_START_LENGTH = 64
_TORCH_MAGIC = torch.serialization.MAGIC_NUMBER.to_bytes(10, "little")  # of files before torch 1.6
_FIELDS = ("categories", "config", "convention", "override", "backbone_only", "training")


class CheckpointError(RuntimeError):
    """A checkpoint cannot be read or written, or does not fit the model."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint is truncated or has changed since it was written."""


def save_checkpoint(checkpoint: Checkpoint, last: bool = True) -> None:
    """Write a checkpoint to its path atomically. If `last`, name it in LAST_CHECKPOINT_FILE.

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
        DamagedCheckpointError: the file is not a checkpoint, or is truncated or damaged.
        CheckpointError: the file is missing, contains pickled objects other than tensors, arrays
            and plain containers, has weights without values, or cannot be converted.
    """
    path = Path(path)
    content = _load(path)
    state, container, prefix, others = unwrap(content)
    if prefix.count(".") > 1 or others:
        unused = f"; not used: {', '.join(others)}" if others else ""
        logger.info("%s: uses the weights %s*%s", path, prefix, unused)
    try:
        source = source or detect_source(state)
        if source is None:
            weights = as_tensors(state)
            _check_values(path, weights)
            checkpoint = Checkpoint(path, weights, prefix=prefix, **_read_fields(container, path))
        else:
            checkpoint = convert(content, source, path)
            logger.info("%s: converted from %s", path, source)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    if source and any(name.startswith(TIMM_PREFIX) for name in checkpoint.model):
        return checkpoint  # the names are already those of a timm backbone
    return replace(checkpoint, timm_backbone=as_timm_backbone(state))


def _check_values(path: Path, state: dict[str, Tensor]) -> None:
    if not state:
        raise CheckpointError(
            f"{path}: contains neither a state dict (names and tensors) nor "
            "{'model': state dict} with any entries"
        )
    if meta := next((name for name, value in state.items() if value.is_meta), None):
        raise CheckpointError(
            f"{path}: {meta} is on the device 'meta' and has no values: save the model after its "
            "weights were loaded"
        )


def _read_fields(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the fields of the right type; others belong to a foreign file."""
    defaults = Checkpoint(path, {})
    valid = {
        name: content[name]
        for name in _FIELDS
        if isinstance(content.get(name), type(getattr(defaults, name)))
    }
    for row in valid.get("categories", ()):
        named = isinstance(row, dict) and isinstance(row.get("name"), str)
        if not named or type(row.get("id")) is not int:
            del valid["categories"]
            break
    if not all(isinstance(item, str) for item in valid.get("override", ())):
        del valid["override"]
    invalid = [name for name in _FIELDS if name not in valid]
    if invalid and content.keys() >= set(_FIELDS):
        raise DamagedCheckpointError(f"{path}: is damaged: its {invalid[0]!r} has a wrong type")
    return valid


def _load(path: Path) -> Any:
    """Load a file of torch.save, safetensors, or a pickle of arrays."""
    try:
        check_regular(path)
        return _read_content(path)
    except CheckpointError:
        raise
    except (FileNotFoundError, IsADirectoryError, PermissionError, RefusedFileError) as error:
        files = path.parent.glob("*") if not path.exists() else ()
        names = [file.name for file in files if file.exists()]  # a broken link does not
        similar = get_close_matches(path.name, names, n=1, cutoff=0.8)
        hint = f": did you mean {path.with_name(similar[0])}?" if similar else ""
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}){hint}") from error
    except ImportError as error:
        raise CheckpointError(f"{path}: needs a package: pip install safetensors") from error
    except Exception as error:
        refused = re.search(r"GLOBAL:? ([\w.]+)", str(error))  # torch's message
        if refused or isinstance(error, RefusedPickleError):
            raise CheckpointError(
                f"{path}: contains a pickled {refused[1] if refused else error}, and unpickling "
                "objects can run any code; nothing was executed. Save only tensors and plain "
                "containers, such as model.state_dict()"
            ) from error
        # Damage raises many other exceptions.
        if kind := explain_kind(path):
            raise CheckpointError(f"{path}: is not a checkpoint; {kind}") from error
        problem = "is not a checkpoint of torch.save, or is truncated or damaged"
        if not path.stat().st_size:
            problem = "is empty"
        elif "operand 149" in str(error):  # the opcode that starts pickles of protocol 4 and 5
            problem = (
                "was saved with pickle protocol 4 or 5: save it with torch.save(content, path)"
            )
        raise DamagedCheckpointError(f"{path}: {problem}") from error


def _read_content(path: Path) -> Any:
    if zipfile.is_zipfile(path):
        with open_stored_zip(path) as records:
            damaged = records.testzip()
        if damaged is not None:
            raise DamagedCheckpointError(
                f"{path}: is damaged: the checksum of record {damaged} is wrong. If the file was "
                "saved without checksums (torch.serialization.set_crc32_options), save it again"
            )
        return load_weights_only(path)
    with path.open("rb") as file:
        start = file.read(_START_LENGTH)
    if path.suffix == ".safetensors" or re.match(rb'.{8}\{"', start, re.DOTALL):
        from safetensors.torch import load  # an optional dependency

        return load(path.read_bytes())
    if start.startswith(b"\x80") and _TORCH_MAGIC not in start:
        return read_pickle(path)
    return load_weights_only(path)
