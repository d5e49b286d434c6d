"""The result of inspecting a dataset, and its text report."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from detlite.data.annotations.selection import Selection
from detlite.data.annotations.table import AnnotationTable
from detlite.data.findings import Finding, summary
from detlite.data.images.sources import ImageFolder
from detlite.data.locations import Location

from .near_duplicates import Fingerprint, similar_groups

Row = dict[str, Any]
Pair = tuple[tuple[int, int], tuple[int, int]]  # each (index of the set, image id)
_SMALL, _LARGE = 32**2, 96**2  # COCO's limits of small and large objects, in square pixels


@dataclass(frozen=True)
class Defect:
    """An error or a warning about one entry of a dataset.

    Attributes:
        kind: short name of this kind of defect.
        where: the entry, such as "annotation 7 (image 3)".
        problem: what is wrong with it.
        refused: True if training refuses the dataset because of it; False for a warning.
        image_id: image of the entry; None for a defect of the file.
        box: [x, y, width, height] in the image, if known.
    """

    kind: str
    where: str
    problem: str
    refused: bool
    image_id: Any = None
    box: Any = None


@dataclass
class Inspection:
    """The defects and the valid entries of one annotation file.

    Attributes:
        table: table of the annotation file; None if the file cannot be read.
        selection: requirements for annotations.
        images: valid entries of `images` by id.
        objects: valid annotations, including crowds.
        findings: what is skipped, reinterpreted or switched off.
        fingerprints: of the readable images, by image id.
    """

    annotations: Location
    folder: ImageFolder
    defects: list[Defect] = field(default_factory=list)
    table: AnnotationTable | None = None
    selection: Selection = field(default_factory=Selection)
    images: dict[int, Row] = field(default_factory=dict)
    objects: list[Row] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    fingerprints: dict[int, Fingerprint] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The path of the annotation file."""
        return str(self.annotations)

    @property
    def refused(self) -> list[Defect]:
        """The defects for which training refuses the dataset."""
        return [defect for defect in self.defects if defect.refused]

    @property
    def categories(self) -> dict[int, str]:
        """Category names by id."""
        rows = self.table.content["categories"] if self.table else []
        return {row["id"]: row["name"] for row in rows}

    def class_balance(self) -> list[tuple[str, int, int]]:
        """Return (category name, number of objects, number of images), most frequent first."""
        rows = [row for row in self.objects if not row.get("iscrowd", 0)]
        objects = Counter(row["category_id"] for row in rows)
        pairs = {(row["image_id"], row["category_id"]) for row in rows}
        images = Counter(category for _, category in pairs)
        table = [(name, objects[key], images[key]) for key, name in self.categories.items()]
        return sorted(table, key=lambda line: -line[1])

    def statistics(self) -> list[tuple[str, str]]:
        """Return numbers of images, objects and sizes as (name, value) pairs."""
        objects = [row for row in self.objects if not row.get("iscrowd", 0)]
        crowds = len(self.objects) - len(objects)
        per_image = Counter(row["image_id"] for row in objects)
        areas = [row["bbox"][2] * row["bbox"][3] for row in objects]
        by_size, _ = np.histogram(areas, (0, _SMALL, _LARGE, np.inf))
        empty = len(self.images.keys() - per_image.keys())
        count = len(self.categories)
        categories = "1 category" if count == 1 else f"{count} categories"
        counted = f"{len(objects)} in {categories}, and {crowds} crowds"
        lines = [
            ("images", f"{len(self.images)}, {empty} without objects"),
            ("objects", counted),
            ("boxes below 32x32, to 96x96, above", ", ".join(map(str, by_size))),
        ]
        if per_image:
            counts = per_image.values()
            lines.append(("objects per image", f"median {median(counts):g}, max {max(counts)}"))
        if self.images:
            heights, widths = (
                [row[side] for row in self.images.values()] for side in ("height", "width")
            )
            value = f"{min(widths)} to {max(widths)} wide, {min(heights)} to {max(heights)} high"
            lines.append(("image sizes", value))
        return lines


def near_duplicates(sets: Sequence[Inspection]) -> list[Pair]:
    """Return pairs of nearly identical images, those of two sets first.

    A group of nearly identical images gives one pair fewer than it has images: each image with the
    first one in its set, or if it is that one, with the first one of the group.
    """
    owners = [(index, number) for index, part in enumerate(sets) for number in part.fingerprints]
    fingerprints = [one for part in sets for one in part.fingerprints.values()]
    pairs, firsts = list[Pair](), dict[tuple[int, int], tuple[int, int]]()
    for n, group in enumerate(similar_groups(fingerprints).tolist()):
        first = firsts.setdefault((group, owners[n][0]), owners[n])
        if first != owners[n] or group != n:
            pairs.append((first if first != owners[n] else owners[group], owners[n]))
    return sorted(pairs, key=lambda pair: pair[0][0] == pair[1][0])


def print_duplicates(sets: Sequence[Inspection], pairs: Sequence[Pair], max_shown: int) -> None:
    """Print the pairs of nearly identical images of two sets, at most `max_shown`."""
    across = [pair for pair in pairs if pair[0][0] != pair[1][0]]
    print(f"{len(across)} pairs of nearly identical images across sets")
    for (first, first_id), (second, second_id) in across[:max_shown]:
        print(f"  {sets[first].name} image {first_id} and {sets[second].name} image {second_id}")


def print_report(inspection: Inspection, max_per_kind: int) -> None:
    """Print statistics and defects, at most `max_per_kind` of each kind."""
    print(inspection.name)
    for name, value in inspection.statistics():
        print(f"  {name}: {value}")
    for name, objects, images in inspection.class_balance():
        print(f"  {name}: {objects} objects in {images} images")
    counts: Counter[str] = Counter()
    for defect in sorted(inspection.defects, key=lambda defect: not defect.refused):
        counts[defect.kind] += 1
        if counts[defect.kind] <= max_per_kind:
            verdict = "error" if defect.refused else "warning"
            print(f"  {verdict}: {defect.where}: {defect.kind}: {defect.problem}")
    for kind, count in counts.items():
        more = f", {count - max_per_kind} not shown" if count > max_per_kind else ""
        print(f"  {kind}: {count}{more}")
    if inspection.findings:
        print(summary({inspection.name: inspection.findings}))
    refused = len(inspection.refused)
    print(f"  errors that stop training: {refused}" if refused else "  no errors")
