"""Transfer weights from a checkpoint with other classes or other heads."""

import logging
import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from detlite.structures.categories import CategoryMatch

logger = logging.getLogger(__name__)

# Layers with outputs for each class in their first dimension. The order is known of named ones.
CLASS_LAYERS = re.compile(
    r"^roi_heads\..*\.predictor\.(?:(cls_score|bbox_pred|mask_fcn_logits)\.)?|^head\.(cls_logits)\."
)


def transfer_classes(
    source: Mapping[str, Tensor], model: nn.Module, match: CategoryMatch
) -> dict[str, Tensor]:
    """Convert the rows of classes in a checkpoint to those of a model's categories.

    In a layer with rows for each class, the rows of shared classes and of the background come from
    the checkpoint, the others from the model. Other layers, those of another width and
    class-agnostic ones are not returned.

    Args:
        source: entries of the checkpoint.
        model: the detector.
        match: the checkpoint's category of each category of the model.
    """
    target, converted = model.state_dict(), {}
    heads = (n for n, m in model.named_modules() if getattr(m, "class_agnostic", False))
    agnostic = tuple(f"{name}.predictor.bbox_pred." for name in heads)
    anchors = len(target.get("head.bbox_pred.bias", ())) // 4  # of a cell of RetinaNet
    for name in source.keys() & target.keys():
        value, own = source[name], target[name]
        layer = CLASS_LAYERS.match(name)
        if not layer or not layer.lastindex or name.startswith(agnostic):
            continue
        groups = anchors if layer[2] else 1  # of classes
        rows = 4 if layer[1] == "bbox_pred" else 1  # per class
        if not groups or own.shape[1:] != value.shape[1:]:
            continue
        background = len(own) // (groups * rows) - match.counts[1]  # 1, or 0 without one
        expected = [groups * rows * (count + background) for count in match.counts]
        if background not in (0, 1) or expected != [len(value), len(own)]:
            continue
        theirs = value.unflatten(0, (groups, -1, rows))
        mixed = own.to(value, copy=True).unflatten(0, (groups, -1, rows))
        mixed[:, :background] = theirs[:, :background]
        for number, other in enumerate(match.numbers):
            if other is not None:
                mixed[:, number + background] = theirs[:, other + background]
        converted[name] = mixed.flatten(0, 2)
    return converted


def match_optional_heads(
    source: Mapping[str, Tensor], target: Mapping[str, Tensor], path: Path
) -> dict[str, Tensor]:
    """Return the entries of a checkpoint with the mask and keypoint heads of the model.

    Heads that the model lacks are removed. Heads that only the model has keep its values.
    """
    entries = dict(source)
    for head in ("mask", "keypoint"):
        start = f"roi_heads.{head}."
        in_target = {name: value for name, value in target.items() if name.startswith(start)}
        in_source = any(name.startswith(start) for name in source)
        if in_target and not in_source:
            logger.warning("%s has no %s head: it is newly initialized", path, head)
            entries |= in_target
        elif in_source and not in_target:
            logger.warning("%s has a %s head, but the model has none: it is skipped", path, head)
            entries = {n: value for n, value in entries.items() if not n.startswith(start)}
    return entries
