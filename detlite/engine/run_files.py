"""Files of a run in OUTPUT_DIR: their names, and the choice and the lock of the folder."""

import logging
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

from filelock import FileLock, Timeout
from yacs.config import CfgNode

from detlite.config import ConfigError
from detlite.config.extensions import copy_extensions
from detlite.files.atomic_write import atomic_open
from detlite.modeling.build import torch_device

from .environment import describe_environment

logger = logging.getLogger(__name__)

CONFIG_FILE = "config.yaml"
METRICS_FILE = "metrics.jsonl"
BEST_CHECKPOINT = "model_best.pth"
FINAL_CHECKPOINT = "model_final.pth"
AVERAGE_CHECKPOINT = "model_final_average.pth"  # averaged weights, without training state
_NUMBERED = re.compile(r"model_(\d+)\.pth")


def numbered_checkpoints(folder: Path) -> dict[int, Path]:
    """Return the numbered checkpoints of a run by their iterations, the oldest first."""
    matches = [(_NUMBERED.fullmatch(path.name), path) for path in folder.glob("model_*.pth")]
    return dict(sorted((int(match[1]), path) for match, path in matches if match))


def files_of_run(folder: Path) -> list[str]:
    """Return file names that show that `folder` contains a training run; empty if it does not."""
    names = [name for name in (METRICS_FILE, FINAL_CHECKPOINT) if (folder / name).exists()]
    return names + [path.name for path in numbered_checkpoints(folder).values()][-1:]


def write_config(cfg: CfgNode, folder: Path) -> None:
    """Write the config of a run to its folder, with copies of the files in IMPORTS.

    Comments in it describe the environment of the run.
    """
    comments = describe_environment(torch_device(cfg.MODEL.DEVICE))
    cfg = cfg.clone()
    cfg.defrost()
    cfg.IMPORTS = copy_extensions(cfg.IMPORTS, folder)
    with atomic_open(folder / CONFIG_FILE) as file:
        file.writelines(f"# {line}\n" for line in comments)
        file.write(cfg.dump())


def choose_output_dir(folder: Path, resume: bool) -> Path:
    """Choose among `folder`, `folder`_2, ... for a run without a folder named by the user.

    Returns the first one without a run or, with `resume`, the last one with a run.
    """
    last, candidate = folder, folder
    for number in count(2):
        if not files_of_run(candidate):
            break
        last, candidate = candidate, folder.with_name(f"{folder.name}_{number}")
    return last if resume else candidate


def check_output_dir(folder: Path, resume: bool) -> None:
    """Raise ConfigError if the folder contains a run and `resume` is False."""
    names = files_of_run(folder)
    if names and not resume:
        raise ConfigError(
            f"OUTPUT_DIR {folder} already contains a run ({', '.join(names)}): continue it with "
            "--resume (resume=True), choose another OUTPUT_DIR, or remove the folder"
        )


@contextmanager
def run_lock(folder: Path, name: str = "run") -> Iterator[None]:
    """Lock an output folder. The system unlocks it if the process dies.

    Args:
        folder: the output folder, created if missing.
        name: name of the lock file. Locks with other names do not conflict.

    Raises:
        ConfigError: another run has locked the folder, or it cannot be written to.
    """
    lock = folder / f".{name}.lock"
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(lock, blocking=False))
            stack.callback(lock.unlink, missing_ok=True)  # before the lock is released
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
