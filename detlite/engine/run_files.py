"""Files of a run in OUTPUT_DIR: their names, and the checkpoint from which a run resumes."""

import logging
import re
from itertools import count
from pathlib import Path

from detlite.checkpoint.errors import CheckpointError, DamagedCheckpointError
from detlite.checkpoint.files import LAST_CHECKPOINT_FILE, Checkpoint, read_checkpoint
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


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """Read the newest undamaged checkpoint of the run in `folder`; None if it has none.

    The file last_checkpoint names it. If that checkpoint is damaged, or the file is missing, read
    the newest of the others, and log the problems. CheckpointError if all are damaged, or the last
    one cannot be read for another reason.
    """
    problems: list[str] = []

    def read(path: Path) -> Checkpoint | None:
        try:
            return read_checkpoint(path)
        except DamagedCheckpointError as error:
            problems.append(str(error))
            return None

    pointer, final = folder / LAST_CHECKPOINT_FILE, folder / FINAL_CHECKPOINT
    numbered, newest = numbered_checkpoints(folder), None
    if pointer.exists():
        name = pointer.read_bytes().decode(errors="replace").strip()
        if name in {path.name for path in folder.iterdir() if path.is_file()}:
            newest = read(folder / name)
        else:
            problems.append(f"{pointer} names {name[:80]!r}, which does not exist")
    elif numbered or final.is_file():
        problems.append(f"{pointer} is missing")
    if newest is None and final.is_file():
        newest = read(final)
    if problems:
        # The final checkpoint is older than the numbered ones if the run was extended.
        done = newest.training.get("iteration", 0) if newest else 0
        later = (path for number, path in reversed(numbered.items()) if number > done)
        newest = next(filter(None, map(read, later)), newest)
        listed = "; ".join(dict.fromkeys(problems))
        if newest is None:
            raise CheckpointError(
                f"{folder} contains no undamaged checkpoint to resume: {listed}. Restore one, or "
                f"remove {LAST_CHECKPOINT_FILE} and the damaged files to start from scratch"
            )
        logger.warning("%s. Resuming from the newest undamaged checkpoint: %s", listed, newest.path)
    return newest
