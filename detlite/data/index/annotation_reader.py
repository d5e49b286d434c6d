"""Read the annotations of a file into COCO's notation, and note what was not in it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detlite.data.datasets import coco_masks, coco_values
from detlite.data.errors import DataError, short_repr
from detlite.data.findings import Findings

from .normalization import Entry, Ids, ImageTable
from .states import PROBLEM_KEY, Flag, annotation_name

_MIN_BOXES = 4  # that can show that all are wrong


@dataclass
class AnnotationReader:
    """Reads annotations, collects findings, and counts boxes that are not in their images.

    Attributes:
        images, categories, read_category_id: what annotations refer to.
        keypoint_count: number of keypoints of an object.
        findings: what was read in another notation, and where.
        examples: the first annotation with each flag, and what is wrong with it.
    """

    images: ImageTable
    categories: list[Entry]
    read_category_id: Ids
    keypoint_count: int
    findings: Findings
    examples: dict[int, str] = field(default_factory=dict)
    boxes: int = 0
    like_corners: int = 0
    misplaced: int = 0
    first_misplaced: str = ""

    def __post_init__(self) -> None:
        self._places = {number: place for place, number in enumerate(self.images.ids)}
        same = self.images.same.items()
        self._places |= {number: self._places[first] for number, first in same}
        self._category_ids = {row["id"] for row in self.categories}

    def read(self, row: Entry, position: int) -> tuple[Entry, int, int, int, int]:
        """Read an annotation.

        Returns:
            The annotation, the same object if it is in COCO's notation; its flags; the number of
            its image, that of all images if unknown; the id of its category, 0 if unknown; and its
            number of labeled keypoints.
        """
        self._row, self._where = row, annotation_name(row, position)
        self._changes: Entry = {}
        self._problems: dict[Flag, str] = {}
        flags, labeled = self._read_marks(), 0
        category_id = self.read_category_id(row.get("category_id"))
        if category_id in self._category_ids:
            self._convert("category_id", category_id)
        else:
            problem = self._unknown_category(row.get("category_id"))
            self._problems[Flag.UNKNOWN_CATEGORY] = problem
        image_id = self.images.read_id(row.get("image_id"))
        unknown = len(self.images.ids)
        place = unknown if image_id is None else self._places.get(image_id, unknown)
        if place < unknown:
            self._convert("image_id", self.images.ids[place])
            if self.images.sizes[place][0]:
                self._read_shape(self.images.sizes[place])
            labeled = self._read_keypoints()
        else:
            problem = f"image_id {short_repr(row.get('image_id'))} is not in 'images'"
            self._problems = {Flag.UNKNOWN_IMAGE: problem, **self._problems}
        for flag, problem in self._problems.items():
            flags |= flag
            self.examples.setdefault(flag, f"{self._where}: {problem}")
        if "region" in self._changes:
            flags |= Flag.REGION
        if self._problems:
            self._changes[PROBLEM_KEY] = {int(flag): text for flag, text in self._problems.items()}
        row = {**row, **self._changes} if self._changes else row
        return row, flags, place, category_id or 0, labeled

    def _use(self, key: str, reading: coco_values.Reading) -> None:
        """Take a value, and note how it was read."""
        written = self._row.get(key)
        if reading.note:
            example = f"{self._where}: {key} {short_repr(written)}"
            self.findings.add(*reading.note, example)
        if reading.value is not written:
            self._changes[key] = reading.value

    def _convert(self, key: str, value: float | None) -> None:
        """Take a number that may be written as text or fraction."""
        written = self._row.get(key)
        if isinstance(written, str):
            self._use(key, coco_values.Reading(value, note=coco_values.TEXT))
        elif type(value) is not type(written) or value != written:
            self._changes[key] = value

    def _read_marks(self) -> int:
        """Read `iscrowd`, `ignore` and `area`, and return the flags of the first two."""
        flags, row = 0, self._row
        crowd = row.get("iscrowd") or 0
        crowd = {"true": 1, "false": 0}.get(str(crowd).lower(), coco_values.integer(crowd))
        if crowd not in (0, 1):
            problem = f"iscrowd is {short_repr(row.get('iscrowd'))}, not 0 or 1"
            self._problems[Flag.BAD_CROWD] = problem
        elif type(row.get("iscrowd", 0)) is not int:
            self._changes["iscrowd"] = crowd
        is_ignored = coco_values.integer(row.get("ignore")) == 1
        for flag, is_set in ((Flag.CROWD, crowd == 1), (Flag.IGNORED, is_ignored)):
            if is_set:
                flags |= flag
                self.examples.setdefault(flag, self._where)
        if (area := row.get("area")) is not None:
            pixels = coco_values.number(area)
            if pixels is None or pixels < 0:
                effect = "They are computed from masks or boxes."
                example = f"{self._where}: {area}"
                self.findings.add("areas that are not square pixels", effect, example)
                self._changes["area"] = None
            else:
                self._convert("area", pixels)
        return flags

    def _read_keypoints(self) -> int:
        """Read the keypoints, and return the number of labeled ones."""
        written = self._row.get("keypoints")
        if not self.keypoint_count:
            if written:
                effect = 'They are not used. Add "keypoints": ["nose", ...] to the category.'
                self.findings.add("keypoints that no category names", effect, self._where)
            return 0
        points = coco_values.read_keypoints(written, self.keypoint_count)
        if points.problem:
            self._problems[Flag.BAD_KEYPOINTS] = points.problem
            return 0
        self._use("keypoints", points)
        return sum(v > 0 for v in points.value[2::3])

    def _unknown_category(self, written: Any) -> str:
        first, last = min(self._category_ids), max(self._category_ids)
        hint = ". Were they counted from 0?" if written == 0 and first == 1 else ""
        return (
            f"category_id {short_repr(written)} is not in 'categories', whose ids are {first} to "
            f"{last}{hint}"
        )

    def _read_shape(self, size: tuple[int, int]) -> None:
        """Read the box and the mask."""
        row = self._row
        box = coco_values.read_box(row.get("bbox"), *size)
        mask = coco_masks.read_segmentation(row.get("segmentation"), *size, box.value)
        self.boxes += 1
        x, y, w, h = _four_numbers(row.get("bbox"))
        self.like_corners += 0 <= x < w <= size[1] and 0 <= y < h <= size[0]
        if box.note == coco_values.CLIPPED or "is outside" in (box.problem or ""):
            self.misplaced += 1
            self.first_misplaced = self.first_misplaced or f"{self._where}: bbox {row['bbox']}"
        if box.problem and not mask.problem:
            tight = coco_masks.mask_box(mask.value, *size)
            if tight and (w <= 0 or h <= 0):
                box = coco_values.Reading(tight, note=coco_values.FROM_MASK)
            elif tight:
                self._changes["region"] = tight
        if box.problem:
            self._problems[Flag.BAD_BOX] = box.problem
        else:
            self._use("bbox", box)
        if not mask.problem:
            self._use("segmentation", mask)
        elif row.get("segmentation"):
            self._problems[Flag.BAD_MASK] = mask.problem
        else:
            needed = "but MODEL.MASK_ON needs one (set it False to train on boxes)"
            self._problems[Flag.NO_MASK] = f"{mask.problem}, {needed}"

    def check_boxes(self, file: Path) -> None:
        """Raise DataError if most boxes are not inside their images, or all fit as corners."""
        corners = self.like_corners == self.boxes >= _MIN_BOXES and self.misplaced
        if corners or (self.misplaced >= _MIN_BOXES and self.misplaced > self.boxes / 2):
            raise DataError(
                f"{file}: {self.misplaced} of {self.boxes} boxes are outside of their images or "
                f"exceed them, for example {self.first_misplaced}. If these are corners "
                "[x1, y1, x2, y2], convert them to [x, y, width, height]; if they belong to images "
                "of another size, scale them"
            )


def _four_numbers(box: Any) -> list[float]:
    """Return the numbers of a box; zeros if it does not have four."""
    values = coco_values.numbers(box)
    return values if values is not None and len(values) == 4 else [0.0] * 4
