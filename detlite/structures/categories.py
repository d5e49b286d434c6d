"""Match categories by name: of a dataset, a checkpoint, a model, or results."""

import re
from collections.abc import Mapping, Sequence
from textwrap import shorten
from typing import Any

from detlite.structures.names import category_form

_PLACEHOLDER = re.compile(r"class \d+")  # what a converter calls classes without a name
_MAX_LENGTH = 300  # characters of a list of names


class CategoryMatch:
    """Finds the `source` category of each `target` category, by name.

    Names are equal, or else differ only in case, spaces, - and _. Categories match by position if
    one side has no names, that is no categories, or only "class 1", "class 2", ...

    Args:
        source, target: rows {"name": ...}.
        labels: how messages call both sides.

    Attributes:
        numbers: the position in `source` of each target category; None if there is none.
        counts: the number of categories of both sides.
        named: True if both sides have names.
        differ: True if both sides have names, and other ones or in another order.
    """

    def __init__(
        self,
        source: Sequence[Mapping[str, Any]],
        target: Sequence[Mapping[str, Any]],
        labels: tuple[str, str] = ("the source", "the target"),
    ) -> None:
        self._names = [
            [str(row.get("name", "")).strip() for row in rows] for rows in (source, target)
        ]
        self._labels = labels
        own, others = self._names
        self.counts = len(own), len(others)
        self.named = all(
            names and not all(map(_PLACEHOLDER.fullmatch, names)) for names in self._names
        )
        self.numbers: list[int | None]
        if not self.named:
            self.numbers = [n if n < len(own) else None for n in range(len(others))]
        else:
            exact = {name: n for n, name in reversed(list(enumerate(own)))}
            alike = {category_form(name): n for n, name in reversed(list(enumerate(own)))}
            self.numbers = [exact.get(name, alike.get(category_form(name))) for name in others]
        self.differ = self.named and self.numbers != [*range(len(own))]

    def __str__(self) -> str:
        """Say which categories match and which do not."""
        own, others = self._names
        missing = {name for name, n in zip(others, self.numbers, strict=True) if n is None}
        lists = {
            "categories matched by name": [name for name in others if name not in missing],
            f"only in {self._labels[0]}": [x for n, x in enumerate(own) if n not in self.numbers],
            f"only in {self._labels[1]}": [name for name in others if name in missing],
        }
        return "; ".join(
            f"{what}: {shorten(', '.join(names), _MAX_LENGTH) or 'none'}"
            for what, names in lists.items()
            if names or "matched" in what
        )
