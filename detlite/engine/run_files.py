"""Files of a run in OUTPUT_DIR: their names, and the checkpoint from which a run resumes."""

import logging
import re
from itertools import count
from pathlib import Path

from detlite.config import ConfigError

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
