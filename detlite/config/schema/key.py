"""The record of a config key, and keys that several sections have."""

from dataclasses import dataclass, replace
from typing import Any

from detlite.config.checks import Check, each, not_negative, one_of, positive

NORMS = ("FrozenBN", "BN", "SyncBN", "GN", "LN")


@dataclass(frozen=True)
class Key:
    """A config key.

    Attributes:
        name: the full name, "SOLVER.BASE_LR".
        default: the default value; its type is the type of the key.
        doc: the description, for docs/config.md and error messages.
        check: returns None for a valid value, otherwise a description of valid values.
        optional_type: the type of a key whose default is None.
        origin: for a key of maskrcnn-benchmark that only restates another, that key.
    """

    name: str
    default: Any
    doc: str
    check: Check | None = None
    optional_type: type | None = None
    origin: str = ""


def section(name: str, *keys: Key) -> tuple[Key, ...]:
    """Prefix the names of keys with their section."""
    return tuple(replace(key, name=f"{name}.{key.name}") for key in keys)


BOX_LOSS = Key(
    "BOX_LOSS",
    "smooth_l1",
    "box regression loss: on the deltas, or 1 - GIoU of the boxes",
    one_of("smooth_l1", "l1", "giou"),
)

BOX_WEIGHTS = Key(
    "BBOX_REG_WEIGHTS",
    (10.0, 10.0, 5.0, 5.0),
    "scales of the box deltas dx, dy, dw, dh",
    each(positive, 4),
)


def box_loss(beta: float) -> tuple[Key, ...]:
    """Return the keys of a box regression loss; `beta` is the default of SMOOTH_L1_BETA."""
    width = "for smooth_l1: width of the quadratic part; 0 gives L1"
    return (
        BOX_LOSS,
        Key("BOX_LOSS_WEIGHT", 1.0, "factor of the box regression loss", not_negative),
        Key("SMOOTH_L1_BETA", beta, width, not_negative),
    )
