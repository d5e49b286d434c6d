"""The environment of a run: software, processor, command and code."""

import platform
import shlex
import subprocess
import sys
from pathlib import Path

import torch

from detlite import __version__
from detlite.errors import one_line

_PACKAGE = Path(__file__).parents[2]


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
    processor = torch.cuda.get_device_name(device) if is_gpu else _processor()
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
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


def _processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
