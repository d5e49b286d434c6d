"""One row of the schema, and rows that several sections have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from detlite.config.checks import Check, not_negative, one_of

NORMS = ("FrozenBN", "BN", "SyncBN", "GN", "LN")


@dataclass(frozen=True)
class Key:
    """One row of the schema; `check` returns None or says what the value should be."""

    name: str
    default: Any
    doc: str
    check: Check | None = None
    optional_type: type | None = None  # of a key whose default is None: may be left out
    origin: str = ""  # of a key that only restates another: that key


def section(name: str, *keys: Key) -> tuple[Key, ...]:
    """The rows of a section, which are given by their names within it."""
    return tuple(replace(key, name=f"{name}.{key.name}") for key in keys)


BOX_LOSS = Key(
    "BOX_LOSS",
    "smooth_l1",
    "loss of the regressed boxes: of their deltas, or 1 - GIoU of the boxes",
    one_of("smooth_l1", "l1", "giou"),
)


def box_loss(beta: float) -> tuple[Key, ...]:
    """The loss of the boxes that a part regresses; `beta` is the default of SMOOTH_L1_BETA."""
    width = "smooth_l1: width of its quadratic part; 0: L1"
    return (
        BOX_LOSS,
        Key("BOX_LOSS_WEIGHT", 1.0, "its factor", not_negative),
        Key("SMOOTH_L1_BETA", beta, width, not_negative),
    )
