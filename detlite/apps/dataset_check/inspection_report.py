"""The result of inspecting a dataset, and its text report."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from detlite.data.annotations.selection import Flag, Selection
from detlite.data.annotations.table import AnnotationTable
from detlite.data.findings import Finding, summary
from detlite.data.images.pixels import DEFAULT_OPTIONS, ImageOptions
from detlite.data.images.sources import ImageFolder
from detlite.data.locations import Location

from .fingerprints import FINGERPRINT
from .image_groups import IDENTICAL, group_images, same_values

Row = dict[str, Any]
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
    """The defects of one annotation file with I images and A annotations.

    Attributes:
        table: table of the annotation file; None if the file cannot be read.
        selection: requirements for annotations.
        image_options: how the images are read.
        sizes: (height, width) of the images, int64 [I, 2].
        used: bool [I], False for images that training skips.
        findings: what is skipped, reinterpreted or switched off.
        prints: fingerprints of the images, FINGERPRINT [I].
    """

    annotations: Location
    folder: ImageFolder
    defects: list[Defect] = field(default_factory=list)
    table: AnnotationTable | None = None
    selection: Selection = field(default_factory=Selection)
    image_options: ImageOptions = DEFAULT_OPTIONS
    sizes: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    used: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    findings: list[Finding] = field(default_factory=list)
    prints: np.ndarray = field(default_factory=lambda: np.zeros(0, FINGERPRINT))

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

    def number(self, image_id: Any) -> int | None:
        """Return the number of an image in the table; None if there is no such image."""
        if self.table is None or not isinstance(image_id, int):
            return None
        found = np.flatnonzero(self.table.image_ids == image_id)
        return int(found[0]) if len(found) else None

    def image(self, number: int) -> Row:
        """Return the entry of an image."""
        assert self.table is not None
        return self.table.image(number)

    def rows(self, number: int) -> list[Row]:
        """Return the valid annotations of an image, including crowds."""
        assert self.table is not None
        indices = self.table.selected(number, self.selection.usable)
        rows = self.table.rows(indices)
        for row, flag in zip(rows, self.table.flags[indices].tolist(), strict=True):
            if flag & (Flag.NO_MASK | Flag.BAD_MASK):
                row["segmentation"] = None
        return rows

    def objects(self) -> tuple[AnnotationTable, np.ndarray, np.ndarray] | None:
        """Return the table, and the indices and the images of the objects in used images."""
        if self.table is None:
            return None
        owners = self.table.owners
        objects = self.selection.objects(self.table.flags) & np.append(self.used, False)[owners]
        return self.table, (indices := np.flatnonzero(objects)), owners[indices]

    def class_balance(self) -> list[tuple[str, int, int]]:
        """Return (category name, number of objects, number of images), most frequent first."""
        if not (found := self.objects()):
            return []
        table, indices, owners = found
        ids = table.column("category_ids")[indices]
        images = np.unique(np.stack([ids, owners]), axis=1)[0]
        rows = [(name, int((ids == key).sum()), int((images == key).sum()))
                for key, name in self.categories.items()]  # fmt: skip
        return sorted(rows, key=lambda row: -row[1])

    def statistics(self) -> list[tuple[str, str]]:
        """Return numbers of images, objects and sizes as (name, value) pairs."""
        if not (found := self.objects()):
            return [("images", "0")]
        table, indices, owners = found
        usable = self.selection.usable(table.flags) & np.append(self.used, False)[table.owners]
        areas = table.column("boxes")[indices, 2:].prod(axis=1)
        by_size, _ = np.histogram(areas, (0, _SMALL, _LARGE, np.inf))
        per_image = np.bincount(owners, minlength=len(table))[self.used]
        count = len(self.categories)
        categories = "1 category" if count == 1 else f"{count} categories"
        crowds = int(usable.sum()) - len(indices)
        lines = [
            ("images", f"{len(per_image)}, {(per_image == 0).sum()} without objects"),
            ("objects", f"{len(indices)} in {categories}, and {crowds} crowds"),
            ("boxes below 32x32, to 96x96, above", ", ".join(map(str, by_size))),
        ]
        if len(shown := per_image[per_image > 0]):
            value = f"median {np.median(shown):g}, max {shown.max()}"
            lines.append(("objects per image", value))
        if len(per_image):
            sizes = self.sizes[self.used]
            low, left, high, right = np.concatenate([sizes.min(axis=0), sizes.max(axis=0)])
            lines.append(("image sizes", f"{left} to {right} wide, {low} to {high} high"))
        return lines


def similar_images(sets: Sequence[Inspection]) -> dict[str, np.ndarray]:
    """Find the images of datasets that belong together, see `ImageGroups.kinds`.

    Returns:
        By kind, (set, image number) of two images in each row, int64 [P, 4]: the first image of
        each group and those in other sets, then the first one in each set and the others there.
    """
    counts = [len(one.prints) for one in sets]
    owners, numbers = np.repeat(range(len(sets)), counts), np.concatenate([*map(np.arange, counts)])
    places, every = np.stack([owners, numbers], axis=1).astype(np.int64), np.arange(len(owners))
    rows = [
        one.image(n) | {"height": height, "width": width}
        for one in sets for n, (height, width) in enumerate(one.sizes.tolist())
    ]  # fmt: skip
    kinds = group_images(rows, np.concatenate([one.prints for one in sets])).kinds
    found = {}
    for kind, labels in kinds.items():
        first = same_values(zip(labels.tolist(), owners.tolist(), strict=True))
        across, within = owners[labels] != owners, first != every
        firsts = places[np.concatenate([labels[across], first[within]])]
        others = places[np.concatenate([every[across], every[within]])]
        found[kind] = np.concatenate([firsts, others], axis=1)
    return found


def print_similar(
    sets: Sequence[Inspection],
    similar: dict[str, np.ndarray],
    max_shown: int,
    index: int | None = None,
) -> None:
    """Print the numbers of similar images in a set; None: across sets, and the first pairs."""
    for kind, pairs in similar.items():
        shared = np.where(pairs[:, 0] == pairs[:, 2], pairs[:, 0], -1)
        found = pairs[shared == (-1 if index is None else index)]
        if len(found) or kind == IDENTICAL:
            where = "across sets" if index is None else "in this set"
            print("  " * (index is not None) + f"{len(found)} pairs of {kind} {where}")
        for first, number, second, other in found[:max_shown].tolist() if index is None else ():
            one, two = sets[first], sets[second]
            ids = one.image(number)["id"], two.image(other)["id"]
            print(f"  {one.name} image {ids[0]} and {two.name} image {ids[1]}")


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
