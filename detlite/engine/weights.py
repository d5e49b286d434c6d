"""Checkpoints into models: entries compared one by one, heads made anew, whole models rebuilt."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from yacs.config import CfgNode

from ..config import ConfigError, config_from, load_config
from ..conversion import TIMM_BODY, weight_file
from ..modeling.detector import Detector
from ..modeling.rcnn import build_model
from .checkpoint import CheckpointError, read_checkpoint

logger = logging.getLogger(__name__)

# The first dimension of a head's last layers counts the classes.
_CLASS_LAYERS = re.compile(r"^roi_heads\..*\.predictor\.|^head\.cls_logits\.")
# What a classifier's body lacks: counters of batches, and the offsets of deformable convolutions.
_FRESH_IN_BODY = re.compile(r"\.num_batches_tracked$|\.conv2\.offset\.")


def load_weights(model: Detector, path: str | Path, reinit_heads: bool = False) -> dict[str, Any]:
    """Loads a checkpoint's weights and categories into `model`.

    Args:
        model: a model with an attribute `categories`.
        path: a checkpoint or a bare state dict, also of another framework. Of a classifier only
            the body is taken; the rest of `model` stays as it is.
        reinit_heads: leave the class-dependent layers (class scores, box regression and mask
            logits), and the categories, as they are in `model` when the file's are of another
            class count; a warning lists them.

    Returns:
        The checkpoint's dict, as `read_checkpoint` gives it.

    Raises:
        CheckpointError: anything is missing, unexpected or of another shape; the message lists it
            and `model` is unchanged.
    """
    ours = model.state_dict()
    content = read_checkpoint(path, timm_body=any(name.startswith(TIMM_BODY) for name in ours))
    theirs = content["model"]
    if content.get("backbone_only"):
        theirs = _with_fresh_heads(theirs, ours)
    # A counter of batches that no frozen norm keeps.
    theirs = {
        name: value
        for name, value in theirs.items()
        if name in ours or not name.endswith(".num_batches_tracked")
    }
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
    inclusive = content.get("unstated", {}).get("MODEL.INCLUSIVE_BOXES", False)
    if inclusive and not model.output.inclusive:
        logger.warning(
            "%s comes from a framework that counts pixels in another way than this model: build "
            "it by load_config_for_weights, or with the keys that docs/migrating.md lists",
            path,
        )
    if fresh:
        logger.warning("%s has other classes; initialised anew: %s", path, ", ".join(fresh))
    elif content["categories"]:
        model.categories = content["categories"]
    return content


def _with_fresh_heads(
    body: dict[str, torch.Tensor], ours: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """A classifier's body, also for heads that apply its last stage; all else from `ours`."""
    filled, used = {}, set()
    for name, value in ours.items():
        source = re.sub(r"^roi_heads\.\w+\.feature_extractor\.res5\.", "backbone.body.res5.", name)
        source = source.replace(".conv2.conv.", ".conv2.")  # deformable here, plain there
        if source in body:
            filled[name] = body[source]
            used.add(source)
        elif not name.startswith("backbone.body.") or _FRESH_IN_BODY.search(name):
            filled[name] = value
    # Without a user the last stage is left out, and of timm's the classifying layers, however each
    # of its models calls them; anything else shows that this is another body.
    unused = {name for name in body.keys() - used if not name.startswith(TIMM_BODY)}
    return filled | {n: body[n] for n in unused if not n.startswith("backbone.body.res5.")}


def load_config_for_weights(path: str | Path, opts: Sequence[Any] = ()) -> CfgNode:
    """`load_config` of a YAML file whose MODEL.WEIGHT may be a detector of maskrcnn-benchmark.

    Its YAML files do not say how it counts pixels. Where MODEL.WEIGHT names weights that it, or
    Caffe2's Detectron, trained, the keys for that default to its ways instead of ours.

    Raises:
        ConfigError: see `load_config`.
    """
    cfg = load_config(path, opts)
    if not cfg.MODEL.WEIGHT:
        return cfg
    try:
        unstated = read_checkpoint(weight_file(cfg)).get("unstated")
    except (CheckpointError, ConfigError):  # whoever loads the weights will say so
        return cfg
    return load_config(path, opts, unstated) if unstated else cfg


def build_model_from_checkpoint(
    path: str | Path, opts: Sequence[Any] = (), config: str | Path | None = None
) -> tuple[CfgNode, Detector]:
    """The model of a checkpoint, by the config that is stored in it, with its weights.

    Args:
        path: a checkpoint that training wrote, or one of another framework.
        opts: overrides of its config, alternating keys and values. A model with parts of your
            own needs `["IMPORTS", "my_parts.py"]`: those that the file names are not imported.
        config: YAML file to build the model from instead; for weights that have no config.

    Returns:
        The config and the model in evaluation mode.

    Raises:
        CheckpointError: a file that cannot be read or has no config.
        ConfigError: overrides that cannot be used.
    """
    if config is None:
        cfg = _stored_config(path, opts)
    else:
        cfg = load_config_for_weights(config, [*opts, "MODEL.WEIGHT", str(path)])
    model = build_model(cfg)
    load_weights(model, path)
    return cfg, model.eval()


def _stored_config(path: str | Path, opts: Sequence[Any]) -> CfgNode:
    text = read_checkpoint(path).get("config")
    try:
        config = yaml.safe_load(text) if isinstance(text, str) else None
    except yaml.YAMLError as error:
        raise CheckpointError(f"{path}: its config is not YAML: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(
            f"{path}: has no config, so it does not say which model it is: name the YAML file "
            "that it was built from as well (`config`, or --config)"
        )
    # Weights must not run code: what a model needs imported is named by who loads it.
    config.pop("IMPORTS", None)
    return config_from(config, Path(path), opts)


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
