"""Findings: what is skipped, reinterpreted or switched off because of the data.

`detlite init`, `detlite check` and the start of a training print the same summary of them.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from textwrap import shorten
from typing import Any

import msgspec

from detlite.errors import one_line

_MAX_LENGTH = 240  # characters of an example


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
        images: number of the entries by image, if they belong to images.
    """

    what: str
    effect: str
    count: int = 1
    entry: str = "annotation"
    example: str = ""
    total: int | None = None
    images: dict[str, int] = field(default_factory=dict)

    def of_images(self, names: Mapping[str, str], others: bool) -> "Finding":
        """Return the finding for some of the images, see `Findings.of_images`."""
        if not self.images:
            return self
        used = {image: count for image, count in self.images.items() if image in names}
        count = sum(used.values()) + others * (self.count - sum(self.images.values()))
        first, example = next(iter(self.images)), self.example
        if used and first not in used:  # the example belongs to another image
            example = names[next(iter(used))]
        return replace(self, count=count, example=example, images=used)

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
        self._new = Counter[tuple[str, str]]()  # entries of kinds since the last `assign`

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._by_kind.values())

    def __len__(self) -> int:
        return len(self._by_kind)

    def add(
        self,
        what: str,
        effect: str,
        example: str = "",
        entry: str = "annotation",
        count: int = 1,
        images: Sequence[object] = (),
    ) -> None:
        """Count entries of a kind: `count`, or one for each of `images`, to which they belong."""
        found = self._by_kind.get((what, effect)) or Finding(what, effect, 0, entry, example)
        self._by_kind[what, effect] = replace(found, count=found.count + (len(images) or count))
        for image in filter(None, map(str, images)):
            found.images[image] = found.images.get(image, 0) + 1
        self._new[what, effect] += 0 if images else count

    def assign(self, image: object = None) -> None:
        """Assign the entries that were added without images since the last call to `image`.

        None: they belong to no image.
        """
        for kind, count in self._new.items():
            if count and image is not None:
                images = self._by_kind[kind].images
                images[str(image)] = images.get(str(image), 0) + count
        self._new.clear()

    def of_images(self, names: Mapping[str, str], others: bool) -> "Findings":
        """Return the findings for some of the images, and those that do not belong to images.

        Args:
            names: the images, with their names for examples.
            others: add the entries of unknown images.
        """
        pairs = ((one, one.of_images(names, others)) for one in self)
        return Findings(part for one, part in pairs if part.count or not one.images)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the member "findings" of an annotation file, which later commands repeat."""
        return [asdict(finding) for finding in self]

    @classmethod
    def from_json(cls, rows: Any) -> "Findings":
        """Read what `to_json` returned; anything else is ignored."""
        try:
            return cls(msgspec.convert(rows or (), list[Finding]))
        except msgspec.ValidationError:  # another program's member of this name
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
