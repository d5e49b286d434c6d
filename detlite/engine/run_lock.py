"""Locks of output folders: two runs never write to the same folder at the same time."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from detlite.errors import ConfigError


@contextmanager
def run_lock(folder: Path, rank: int = 0, world_size: int = 1, name: str = "run") -> Iterator[None]:
    """Lock an output folder for one process of a run. The system unlocks it if the process dies.

    Args:
        folder: the output folder, created if missing.
        rank, world_size: processes of the same rank exclude each other. With a `world_size` of 1,
            the process excludes all others.
        name: first part of the name of the lock file. Locks with other names do not conflict.

    Raises:
        ConfigError: another run has locked the folder, or it cannot be written to.
    """
    lock = folder / f".{name}-{rank}.lock"
    other_locks = {*folder.glob(f".{name}-*.lock")} - {lock} if world_size == 1 else set()
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for file in (lock, *other_locks):
                stack.enter_context(FileLock(file, blocking=False))
                stack.callback(file.unlink, missing_ok=True)  # before the lock is released
        except Timeout as error:
            raise ConfigError(
                f"{folder}: another run is writing to this folder: wait until it ends, stop it, or "
                "choose another output folder"
            ) from error
        except OSError as error:
            raise ConfigError(
                f"{folder}: cannot be written to ({error.strerror}): choose another output folder"
            ) from error
        yield
