"""timm: its classifiers, as the body of a detector that timm builds (`modeling/backbone/timm`)."""

from __future__ import annotations

from torch import Tensor

from .checkpoint_source import Entries, Source, State

# Where a detector keeps the entries of a classifier of timm.
BODY = "backbone.body.net."

TIMM = Source(
    name="timm",
    convention="",
    # Its models have no names in common: who loads one says that it is timm's.
    recognise=lambda _names: False,
    rules=[(r"^", BODY)],
    configure=lambda *_: {},
)


def timm_body(entries: Entries) -> State:
    """A classifier's entries for a body of timm; empty where they are arrays, or some are called a
    backbone's, so that they are none."""
    for name, value in entries.items():
        if name.startswith("backbone.") or not isinstance(value, Tensor):
            return {}
    return TIMM.rename(entries)
