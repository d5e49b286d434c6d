"""Transfer weights from a checkpoint with other classes or other heads."""

import logging
import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from detlite.structures.categories import CategoryMatch

logger = logging.getLogger(__name__)

# Layers with outputs for each class in their first dimension.
CLASS_LAYERS = re.compile(r"^roi_heads\..*\.predictor\.|^head\.cls_logits\.")
_BY_CLASS = re.compile(r"^roi_heads\..*\.predictor\.(cls_score|bbox_pred|mask_fcn_logits)\.")


class ClassTransfer:
    """Converts the rows of classes in a checkpoint to those of a model's categories.

    Args:
        match: finds the checkpoint's category of each category of the model.
    """

    def __init__(self, match: CategoryMatch) -> None:
        self._counts = match.counts
        self._shared = {n: other for n, other in enumerate(match.numbers) if other is not None}

    def transfer(self, name: str, value: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        """Convert an entry of the checkpoint, `name` and `value`, to the classes of the model.

        In a layer with rows for each class, the rows of shared classes and of the background come
        from the checkpoint, the others from the model's `state`. Entries of other layers, and of
        layers with another width, are returned unchanged.
        """
        target = state.get(name)
        if target is None or target.shape[1:] != value.shape[1:]:
            return value
        groups, rows = 1, 1  # groups of classes, and rows per class
        if name.startswith("head.cls_logits.") and "head.bbox_pred.bias" in state:
            groups = len(state["head.bbox_pred.bias"]) // 4  # RetinaNet: classes of each anchor
        elif match := _BY_CLASS.match(name):
            rows = 4 if match[1] == "bbox_pred" else 1
        else:
            return value
        background = len(target) // (groups * rows) - self._counts[1]  # 1, or 0 without one
        expected = [groups * rows * (count + background) for count in self._counts]
        if background not in (0, 1) or expected != [len(value), len(target)]:
            return value
        source = value.unflatten(0, (groups, -1, rows))
        mixed = target.to(value, copy=True).unflatten(0, (groups, -1, rows))
        mixed[:, :background] = source[:, :background]
        for target_class, source_class in self._shared.items():
            mixed[:, target_class + background] = source[:, source_class + background]
        return mixed.flatten(0, 2)


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
