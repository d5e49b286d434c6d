"""What inspecting a data set finds: defects, and what of the set is sound."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from detlite.data.remote.locations import Location
from detlite.data.remote.shards import ImageFolder, ShardFolder

from .near_duplicates import Fingerprints

Row = dict[str, Any]


@dataclass(frozen=True)
class Defect:
    """One thing that is wrong, or odd.

    Attributes:
        kind: what it is, in a word or two, the same for all of its kind.
        where: what it is wrong with: "annotation 7 (image 3)".
        problem: what is wrong.
        refused: training refuses it; else it is worth a look.
        image_id: of the image that it belongs to; None: of the file.
        box: where in the image, [x, y, width, height], where it is known.
    """

    kind: str
    where: str
    problem: str
    refused: bool
    image_id: Any = None
    box: Any = None


@dataclass
class Inspection:
    """What was found in one annotation file.

    Attributes:
        content: the file as it was read, empty where it could not be.
        images: the sound entries of `images` by id.
        category_rows: the sound entries of `categories`.
        objects: sound annotations, crowds among them.
        masks: whether every annotation must have a mask.
        keypoints: how many each must have, or 0.
        fingerprints, fingerprinted: of the pictures that could be read, and their image ids.
    """

    annotations: Location
    folder: ImageFolder
    defects: list[Defect] = field(default_factory=list)
    content: Row = field(default_factory=dict)
    images: dict[int, Row] = field(default_factory=dict)
    category_rows: list[Row] = field(default_factory=list)
    objects: list[Row] = field(default_factory=list)
    masks: bool = False
    keypoints: int = 0
    fingerprints: Fingerprints = field(default_factory=Fingerprints)
    fingerprinted: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What it is called: its annotation file, or its shards."""
        return self.folder.name if isinstance(self.folder, ShardFolder) else str(self.annotations)

    @property
    def refused(self) -> list[Defect]:
        """The defects for which training would refuse the set."""
        return [defect for defect in self.defects if defect.refused]

    @property
    def categories(self) -> dict[int, str]:
        """Names by id."""
        return {row["id"]: row["name"] for row in self.category_rows}

    @property
    def sizes(self) -> dict[int, tuple[int, int]]:
        """(height, width) of each sound entry of `images`, by id."""
        return {number: (row["height"], row["width"]) for number, row in self.images.items()}

    def balance(self) -> list[tuple[str, int, int]]:
        """Of each category (name, objects, images), the most common first; no crowds."""
        rows = [row for row in self.objects if not row.get("iscrowd", 0)]
        objects = Counter(row["category_id"] for row in rows)
        images = Counter(number for _, number in {(r["image_id"], r["category_id"]) for r in rows})
        table = [
            (name, objects[number], images[number]) for number, name in self.categories.items()
        ]
        return sorted(table, key=lambda line: -line[1])
