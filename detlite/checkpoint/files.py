"""Write checkpoints, and read those of all frameworks without executing code in them.

Torch stores a CRC-32 of every record but does not check it, so reading checks it here.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from detlite.conversion.convert import convert
from detlite.errors import CheckpointError, DamagedCheckpointError
from detlite.files.atomic_write import atomic_open, atomic_path
from detlite.files.errors import RefusedFileError, RefusedPickleError
from detlite.files.reading import check_regular
from detlite.files.safe_pickle import read_pickle

from .contents import FIELDS, Checkpoint, as_tensors, is_own, read_fields
from .file_kinds import explain_kind

LAST_CHECKPOINT_FILE = "last_checkpoint"  # contains the file name of a run's last checkpoint
_START_LENGTH = 16


def save_checkpoint(checkpoint: Checkpoint, last: bool = True) -> None:
    """Write a checkpoint to its path atomically. If `last`, name it in LAST_CHECKPOINT_FILE.

    Raises:
        CheckpointError: the folder is not writable, or the disk is full.
    """
    path = checkpoint.path
    content = {name: getattr(checkpoint, name) for name in FIELDS}
    # Contiguous, as other tools such as safetensors expect; training uses another memory format.
    content["model"] = {name: value.contiguous() for name, value in checkpoint.model.items()}
    with _explain_write_errors(path), atomic_path(path) as temporary:
        torch.save(content, temporary)
    if last:
        pointer = path.with_name(LAST_CHECKPOINT_FILE)
        with _explain_write_errors(pointer), atomic_open(pointer) as file:
            file.write(path.name + "\n")


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

    Files that `save_checkpoint` did not write are read by `conversion.convert`.

    Args:
        path: the file.
        source: the framework, a name in `conversion.convert.SOURCES`; None: recognized by
            the names of the weights.

    Raises:
        DamagedCheckpointError: the file is not a checkpoint, or is truncated or damaged.
        CheckpointError: the file is missing, contains pickled objects other than tensors, arrays
            and plain containers, has weights without values, or cannot be converted.
    """
    path = Path(path)
    content = _load(path)
    try:
        if source is None and is_own(content):
            state = as_tensors(content["model"])
            checkpoint = Checkpoint(path, state, **read_fields(content, path))
        else:
            checkpoint = convert(content, source, path)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    if not checkpoint.model:
        kind = explain_kind(path)  # a program of TorchScript is a pickle of objects, too
        problem = "contains neither a state dict (names and tensors) nor {'model': state dict}"
        problem = f"is not a checkpoint; {kind}" if kind else f"{problem} with any entries"
        raise CheckpointError(f"{path}: {problem}")
    return checkpoint


def _load(path: Path) -> Any:
    """Load a file of torch.save, safetensors, or a pickle of arrays."""
    try:
        check_regular(path)
        with path.open("rb") as file:
            start = file.read(_START_LENGTH)
        if path.suffix == ".safetensors" or re.match(rb'.{8}\{"', start, re.DOTALL):
            from safetensors.torch import load  # an optional dependency

            return load(path.read_bytes())
        return read_pickle(path)
    except (FileNotFoundError, IsADirectoryError, PermissionError, RefusedFileError) as error:
        files = path.parent.glob("*") if not path.exists() else ()
        names = [file.name for file in files if file.exists()]  # a broken link does not
        similar = get_close_matches(path.name, names, n=1, cutoff=0.8)
        hint = f": did you mean {path.with_name(similar[0])}?" if similar else ""
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}){hint}") from error
    except ImportError as error:
        raise CheckpointError(f"{path}: needs a package: pip install safetensors") from error
    except RefusedPickleError as error:
        raise CheckpointError(
            f"{path}: contains a pickled {error}, and unpickling objects can run any code; "
            "nothing was executed. Save only dense tensors with values and plain containers, "
            "such as model.state_dict()"
        ) from error
    except Exception as error:  # damage raises many
        if kind := explain_kind(path):
            raise CheckpointError(f"{path}: is not a checkpoint; {kind}") from error
        problem = "is not a checkpoint of torch.save, or is truncated or damaged"
        if "CRC-32" in str(error):
            problem = (
                f"is damaged: the checksum of a record is wrong ({error}). If the file was saved "
                "without checksums (torch.serialization.set_crc32_options), save it again"
            )
        elif not path.stat().st_size:
            problem = "is empty"
        raise DamagedCheckpointError(f"{path}: {problem}") from error
