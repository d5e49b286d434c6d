"""What a model takes over from a checkpoint of other classes or with other heads."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from torch import Tensor

logger = logging.getLogger(__name__)

_OPTIONAL_HEADS = ("mask", "keypoint")
# The first dimension of a head's last layers counts the classes.
CLASS_LAYERS = re.compile(r"^roi_heads\..*\.predictor\.|^head\.cls_logits\.")
_BY_CLASS = re.compile(
    r"^roi_heads\..*\.predictor\.(cls_score|bbox_pred|mask_fcn_logits)\.(weight|bias)$"
)
_BY_ANCHOR = re.compile(r"^head\.cls_logits\.(weight|bias)$")  # RetinaNet: each anchor's classes


class ClassRows:
    """Which classes of a checkpoint are also those of a model: by name, whatever its capitals.

    Args:
        theirs, ours: categories {"name": ...} of the checkpoint and of the model, in the order of
            their labels; empty where they are not known.

    Attributes:
        differ: whether both are known and not the same in the same order.
    """

    def __init__(
        self, theirs: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]]
    ) -> None:
        names = [[str(row["name"]).strip().casefold() for row in rows] for rows in (theirs, ours)]
        self.differ = bool(theirs and ours) and names[0] != names[1]
        self._counts = len(theirs), len(ours)
        place = {name: number for number, name in reversed(list(enumerate(names[0])))}
        self._shared = [(place[name], own) for own, name in enumerate(names[1]) if name in place]
        known = {own for _, own in self._shared}
        self._taken = [row["name"] for own, row in enumerate(ours) if own in known]
        self._new = [row["name"] for own, row in enumerate(ours) if own not in known]

    def __str__(self) -> str:
        taken, new = (
            shorten(", ".join(map(str, names)), 500) or "none" for names in (self._taken, self._new)
        )
        return f"taken over by name: {taken}; begin anew: {new}"

    def taken(self, name: str, theirs: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        """An entry of the checkpoint as the model is to have it.

        Of a layer with rows of each class, the model's own with those of shared classes and of the
        background in place of its; any other as it is.

        Args:
            name: of the entry.
            theirs: its value in the checkpoint.
            state: the model's own state dict.
        """
        layout = self._layout(name, theirs, state)
        if layout is None:
            return theirs
        groups, background, each = layout
        source = theirs.unflatten(0, (groups, -1, each))
        mixed = state[name].to(theirs, copy=True).unflatten(0, (groups, -1, each))
        mixed[:, :background] = source[:, :background]
        for other, own in self._shared:
            mixed[:, own + background] = source[:, other + background]
        return mixed.flatten(0, 2)

    def _layout(
        self, name: str, theirs: Tensor, state: Mapping[str, Tensor]
    ) -> tuple[int, int, int] | None:
        """Of a layer with rows of each class: groups of classes, 1 with a background, rows of each.

        None of another layer: one that is the same for all classes, or of another width.
        """
        if _BY_ANCHOR.match(name) and "head.bbox_pred.bias" in state:
            groups, each = len(state["head.bbox_pred.bias"]) // 4, 1
        elif match := _BY_CLASS.match(name):
            groups, each = 1, 4 if match[1] == "bbox_pred" else 1
        else:
            return None
        ours = state.get(name)
        if ours is None or ours.shape[1:] != theirs.shape[1:]:
            return None
        background = len(ours) // (groups * each) - self._counts[1]
        wanted = [groups * each * (count + background) for count in self._counts]
        if background not in (0, 1) or wanted != [len(theirs), len(ours)]:
            return None
        return groups, background, each


def with_same_heads(
    theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor], path: Path
) -> dict[str, Tensor]:
    """A checkpoint's entries without heads that the model lacks, and with those that it lacks."""
    entries = dict(theirs)
    for head in _OPTIONAL_HEADS:
        prefix = f"roi_heads.{head}."
        own, other = (
            {name: value for name, value in state.items() if name.startswith(prefix)}
            for state in (ours, theirs)
        )
        if own and not other:
            logger.warning("%s has no %s head: it begins anew", path, head)
            entries |= own
        elif other and not own:
            logger.warning("%s has a %s head, which the model has not: left out", path, head)
            entries = {name: value for name, value in entries.items() if name not in other}
    return entries
