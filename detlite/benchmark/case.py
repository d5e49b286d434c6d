"""What a comparison is, and the list of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One comparison.

    Args:
        name: as in the results.
        dtype: of detlite's input.
        run: detlite's call.
        reference: torchvision's, or where it has none, what else does the same job.
        traffic: the bytes that any implementation must read and write at least; 0 where the time
            goes elsewhere.
    """

    name: str
    dtype: str
    run: Callable[[], object]
    reference: Callable[[], object]
    traffic: int = 0


Group = Callable[[str], Iterator[Case]]

GROUPS: list[Group] = []
"""Functions that make the inputs on a device ("cpu" or "cuda") and yield the cases of them."""


def cases(group: Group) -> Group:
    """Decorator that adds a function to GROUPS. It is called with torch's generator seeded by 0."""
    GROUPS.append(group)
    return group
