"""The checkpoints of a run's folder: which one a run goes on from."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from detlite.conversion.checkpoint.files import (
    LAST,
    Checkpoint,
    CheckpointError,
    DamagedCheckpointError,
    read_checkpoint,
)

logger = logging.getLogger(__name__)

FINAL_CHECKPOINT = "model_final.pth"
AVERAGE_CHECKPOINT = "model_final_average.pth"  # weights alone
_NUMBERED = re.compile(r"model_(\d+)\.pth")


def checkpoint_name(iteration: int) -> str:
    """What the checkpoint of so many finished iterations is called, but for the final one."""
    return f"model_{iteration:07d}.pth"


def numbered_checkpoints(folder: Path) -> dict[int, Path]:
    """The checkpoints of a run by their finished iterations, the oldest first."""
    found = [(_NUMBERED.fullmatch(path.name), path) for path in folder.glob("model_*.pth")]
    return dict(sorted((int(match[1]), path) for match, path in found if match))


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint of the run in `folder`, or None where there is none at all.

    The one that the run noted as its last. Where it is damaged or the note lost, the newest of the
    others; the log names those that are passed over.

    Raises:
        CheckpointError: there are checkpoints, or a note of one, and none of them is whole, or the
            last one cannot be read for another reason.
    """
    problems: list[str] = []

    def read(path: Path) -> Checkpoint | None:
        try:
            return read_checkpoint(path)
        except DamagedCheckpointError as error:
            problems.append(str(error))
            return None

    note = folder / LAST
    found = None
    if note.exists():
        name = note.read_bytes().decode(errors="replace").strip()
        if name in {path.name for path in folder.iterdir() if path.is_file()}:
            found = read(folder / name)
        else:
            problems.append(f"{note}: names {name[:80]!r}, and there is no such file")
    if found is None and (folder / FINAL_CHECKPOINT).is_file():
        found = read(folder / FINAL_CHECKPOINT)
    if found is None or problems or not note.exists():
        # A final checkpoint may be that of a run that was prolonged since.
        done = found.training.get("iteration", 0) if found else 0
        for iteration, path in reversed(numbered_checkpoints(folder).items()):
            if iteration <= done:
                break
            if newer := read(path):
                found = newer
                break
    if found is None and problems:
        listed = "; ".join(dict.fromkeys(problems))
        raise CheckpointError(
            f"{folder} holds no whole checkpoint to resume: {listed}. Put one back, or remove "
            f"{LAST} and what is damaged to start anew"
        )
    if found and (problems or not note.exists()):
        problems = problems or [f"{note} is missing"]
        logger.warning(
            "%s. Resuming the newest whole checkpoint: %s",
            "; ".join(dict.fromkeys(problems)), found.path,
        )  # fmt: skip
    return found
