"""Files of a run in OUTPUT_DIR: their names and folder, and the environment that they state."""

import logging
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from yacs.config import CfgNode

from detlite import __version__
from detlite.config import ConfigError, changed
from detlite.config.extensions import copy_extensions
from detlite.errors import one_line
from detlite.files.atomic_write import atomic_open
from detlite.modeling.build import torch_device
from detlite.modeling.precision import processor_name

logger = logging.getLogger(__name__)

CONFIG_FILE = "config.yaml"
METRICS_FILE = "metrics.jsonl"
BEST_CHECKPOINT = "model_best.pth"
FINAL_CHECKPOINT = "model_final.pth"
AVERAGE_CHECKPOINT = "model_final_average.pth"  # averaged weights, without training state
_PACKAGE = Path(__file__).parents[2]
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
    cfg = changed(cfg, {"IMPORTS": copy_extensions(cfg.IMPORTS, folder)})
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


def describe_environment(device: torch.device) -> list[str]:
    """Return lines about versions, the processor or GPU `device`, the command and its git commit.

    The commit is that of the working directory, with "modified" if tracked files differ from it,
    and that of detlite, if it runs from a clone.
    """
    clone = _commit(_PACKAGE) if (_PACKAGE / ".git").exists() else ""
    versions = f"detlite {__version__}{f' ({clone})' if clone else ''}, torch {torch.__version__}"
    cuda = f", CUDA {torch.version.cuda}" if torch.version.cuda else ""
    python = f", Python {platform.python_version()}"
    is_gpu = device.type == "cuda"
    processor = torch.cuda.get_device_name(device) if is_gpu else processor_name()
    program = Path(sys.argv[0])
    is_package = program.name == "__main__.py"
    words = ["python", "-m", program.parent.name] if is_package else [program.name]
    command = shlex.join([*words, *sys.argv[1:]])
    commit = _commit(Path.cwd())
    lines = [
        f"versions: {versions}{cuda}{python}",
        f"device: {device} ({processor})",
        f"command: {command}",
        *([f"git commit of {Path.cwd()}: {commit}"] if commit else []),
    ]
    return [one_line(line) for line in lines]


def _commit(folder: Path) -> str:
    """Return the commit of the git checkout around a folder, "" if there is none."""
    # A file system monitor is a program that the checkout names.
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), "describe", "--always",
               "--abbrev=12", "--exclude=*", "--dirty"]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):  # no git, no checkout, or a huge one
        return ""
    return done.stdout.strip().replace("-dirty", " modified")
