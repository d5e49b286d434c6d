"""Findings: what is skipped, reinterpreted or switched off because of the data.

`detlite init`, `detlite check` and the start of a training print the same summary of them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from textwrap import shorten
from typing import Any

from detlite.errors import one_line

_MAX_LENGTH = 240  # characters of an example
_BEFORE_SPLIT = " The number is from before the split into train and val."


@dataclass(frozen=True)
class Finding:
    """A kind of entries that are skipped or reinterpreted.

    Attributes:
        what: the kind, such as "numbers as text".
        effect: what happens to such entries, and what to do, in sentences.
        count: number of such entries; 0 if it has no number.
        entry: what is counted, in the singular: "annotation", "label line", "image".
        example: the first of them with its id or line, and what is wrong with it.
        total: number of all entries, if that matters.
    """

    what: str
    effect: str
    count: int = 1
    entry: str = "annotation"
    example: str = ""
    total: int | None = None

    def without_advice(self) -> str:
        """Describe it where no config is in use, without sentences that name keys; "" if none."""
        sentences = re.split(r"(?<=\.) ", self.effect)
        effect = " ".join(text for text in sentences if not re.search(r"[A-Z]+\.[A-Z]", text))
        return str(replace(self, effect=effect)) if effect else ""

    def __str__(self) -> str:
        number = f"{self.count}" if self.total is None else f"{self.count} of {self.total}"
        entry = self.entry
        if (self.total or self.count) != 1:
            entry = f"{entry[:-1]}ies" if entry.endswith("y") else f"{entry}s"
        counted = f": {number} {entry}" if self.count else ""
        text = shorten(one_line(self.example), _MAX_LENGTH)
        example = f", for example {text}" if text else ""
        return f"{self.what}{counted}{example}. {self.effect}"


class Findings:
    """Findings by kind: equal ones are counted, and the first one is the example."""

    def __init__(self, findings: Iterable[Finding] = ()) -> None:
        self._by_kind = {(finding.what, finding.effect): finding for finding in findings}

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._by_kind.values())

    def __len__(self) -> int:
        return len(self._by_kind)

    def add(
        self, what: str, effect: str, example: str = "", entry: str = "annotation", count: int = 1
    ) -> None:
        """Count entries of a kind."""
        found = self._by_kind.get((what, effect)) or Finding(what, effect, 0, entry, example)
        self._by_kind[what, effect] = replace(found, count=found.count + count)

    def before_split(self) -> "Findings":
        """Return the findings with a note for train and val, which both get the total numbers."""
        return Findings(
            finding if not finding.count or finding.effect.endswith(_BEFORE_SPLIT)
            else replace(finding, effect=finding.effect + _BEFORE_SPLIT)
            for finding in self
        )  # fmt: skip

    def to_json(self) -> list[dict[str, Any]]:
        """Return the member "findings" of an annotation file, which later commands repeat."""
        return [asdict(finding) for finding in self]

    @classmethod
    def from_json(cls, rows: Any) -> "Findings":
        """Read what `to_json` returned; anything else is ignored."""
        try:
            return cls(Finding(**row) for row in rows or ())
        except (TypeError, ValueError):  # another program's member of this name
            return cls()


def summary(findings: Mapping[str, Iterable[Finding]]) -> str:
    """Return the findings of datasets by name as one block of text; "" if there are none.

    Findings that several sets share, for example after splitting a folder, are listed once.
    """
    lines: list[str] = []
    for name, found in findings.items():
        new = [line for finding in found if (line := f"  - {finding}") not in lines]
        if new:
            lines += [f"{name}: some entries are skipped, reinterpreted or not used:", *new]
    return "\n".join(lines)
