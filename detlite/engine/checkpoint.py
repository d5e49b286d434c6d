"""Checkpoints: read, checked against a model, written.

A checkpoint is one dict that `torch.load(weights_only=True)` reads: `model` (state dict),
`categories` (COCO categories; label k is categories[k - 1]), `config` (YAML text), `iteration`,
and, to go on with the training, `optimizer`, `scheduler`, `scaler`, `sampler` and `rng`.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from yacs.config import CfgNode

from ..config import load_config
from ..modeling.rcnn import GeneralizedRCNN, build_model

logger = logging.getLogger(__name__)

_LAST = "last_checkpoint"
# The first dimension of a head's last layers counts the classes.
_CLASS_LAYERS = re.compile(r"^roi_heads\..*\.predictor\.")


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be read, or that does not fit the model."""


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Writes a checkpoint and notes it as the folder's last; both appear whole or not at all.

    Args:
        path: the file; its folder must exist.
        content: the dict that the head of this file describes.
    """
    _replace(path, lambda temporary: torch.save(content, temporary))
    _replace(path.with_name(_LAST), lambda temporary: temporary.write_text(path.name + "\n"))


def last_checkpoint(folder: Path) -> Path | None:
    """The checkpoint that a run in `folder` saved last, or None when it saved none."""
    note = folder / _LAST
    return folder / note.read_text().strip() if note.exists() else None


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Reads a checkpoint, or a bare state dict, onto the CPU, executing nothing in it.

    Returns:
        The checkpoint's dict. `model` is always there, without the `module.` prefixes of
        DistributedDataParallel; `categories` too, empty when unknown.

    Raises:
        CheckpointError: a file that is missing, truncated or not a checkpoint, or that holds
            pickled objects other than tensors and plain containers.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    # Whatever else torch raises depends on where the bytes stop making sense.
    except Exception as error:
        foreign = re.search(r"GLOBAL:? ([\w.]+)", str(error))
        if foreign:
            raise CheckpointError(
                f"{path}: holds a pickled {foreign[1]}, and unpickling objects can run any code; "
                "nothing was executed. Save tensors and plain containers alone, such as "
                "model.state_dict()"
            ) from error
        raise CheckpointError(
            f"{path}: is not a checkpoint of torch.save, or is truncated or damaged"
        ) from error
    if isinstance(content, dict) and "model" not in content:
        content = {"model": content}
    state = content["model"] if isinstance(content, dict) else None
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in state.items()
    ):
        raise CheckpointError(
            f"{path}: holds neither a state dict (names and tensors) nor {{'model': state dict}}"
        )
    content["model"] = {name.removeprefix("module."): value for name, value in state.items()}
    content.setdefault("categories", [])
    return content


def load_weights(
    model: GeneralizedRCNN, path: str | Path, reinit_heads: bool = False
) -> dict[str, Any]:
    """Loads a checkpoint's weights and categories into `model`.

    Args:
        model: a model with an attribute `categories`.
        path: a checkpoint or a bare state dict.
        reinit_heads: leave the class-dependent layers (class scores, box regression and mask
            logits), and the categories, as they are in `model` when the file's are of another
            class count; a warning lists them.

    Returns:
        The checkpoint's dict, as `read_checkpoint` gives it.

    Raises:
        CheckpointError: anything is missing, unexpected or of another shape; the message lists it
            and `model` is unchanged.
    """
    content = read_checkpoint(path)
    ours, theirs = model.state_dict(), content["model"]
    differs = [name for name in ours if name in theirs and ours[name].shape != theirs[name].shape]
    by_class = [
        name
        for name in differs
        if _CLASS_LAYERS.match(name) and ours[name].shape[1:] == theirs[name].shape[1:]
    ]
    fresh = by_class if reinit_heads else []
    rows = [
        *(("missing in the file", name, "", _shape(ours[name])) for name in ours.keys() - theirs),
        *(
            ("unknown to the model", name, _shape(theirs[name]), "")
            for name in theirs.keys() - ours
        ),
        *(
            ("other shape", name, _shape(theirs[name]), _shape(ours[name]))
            for name in differs
            if name not in fresh
        ),
    ]
    if rows:
        fitted = len(ours.keys() & theirs) - len(differs)
        message = f"{path} does not fit the model: {fitted} of its {len(ours)} entries do"
        if len(rows) == len(by_class):
            message += (
                ". Only the number of classes differs: MODEL.REINIT_HEADS True takes the rest "
                "and initialises these anew"
            )
        raise CheckpointError(message + "\n" + _table(sorted(rows)))
    model.load_state_dict({**theirs, **{name: ours[name] for name in fresh}})
    if fresh:
        logger.warning("%s has other classes; initialised anew: %s", path, ", ".join(fresh))
    elif content["categories"]:
        model.categories = content["categories"]
    return content


def build_model_from_checkpoint(
    path: str | Path, opts: Sequence[Any] = ()
) -> tuple[CfgNode, GeneralizedRCNN]:
    """The model of a checkpoint, by the config that is stored in it, with its weights.

    Args:
        path: a checkpoint that training wrote.
        opts: overrides of its config, alternating keys and values. A model with parts of your
            own needs `["IMPORTS", "my_parts.py"]`: those that the file names are not imported.

    Returns:
        The config and the model in evaluation mode.

    Raises:
        CheckpointError: a file that cannot be read or has no config.
        ConfigError: overrides that cannot be used.
    """
    text = read_checkpoint(path).get("config")
    config = yaml.safe_load(text) if isinstance(text, str) else None
    if not isinstance(config, dict):
        raise CheckpointError(
            f"{path}: has no config, so it does not say which model it is; build the model from "
            "its YAML file and name these weights as MODEL.WEIGHT"
        )
    # Weights must not run code: what a model needs imported is named by who loads it.
    config.pop("IMPORTS", None)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(yaml.safe_dump(config))
        cfg = load_config(file, opts)
    model = build_model(cfg)
    load_weights(model, path)
    return cfg, model.eval()


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    temporary = path.with_name(path.name + ".tmp")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _shape(tensor: torch.Tensor) -> str:
    return str(list(tensor.shape))


def _table(rows: Sequence[tuple[str, str, str, str]], most: int = 40) -> str:
    """Aligned columns; of very many rows, the first."""
    shown = [("", "entry", "in the file", "in the model"), *rows[:most]]
    widths = [max(len(row[column]) for row in shown) for column in range(4)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in shown
    ]
    if len(rows) > most:
        lines.append(f"... and {len(rows) - most} more")
    return "\n".join("  " + line for line in lines)
