"""Read the annotations of a file into COCO's notation, and note what was not in it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detlite.data.datasets import coco_values
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
        self._category_ids = {row["id"] for row in self.categories}

    def read(self, row: Entry, position: int) -> tuple[Entry, int, int, int, int]:
        """Read an annotation.

        Returns:
            The annotation, the same object if it is in COCO's notation; its flags; the number of
            its image, that of all images if unknown; the id of its category, 0 if unknown; and its
            number of labeled keypoints.
        """
        where = annotation_name(row, position)
        changes: Entry = {}
        problems: dict[Flag, str] = {}
        flags = labeled = 0

        def use(key: str, reading: coco_values.Reading) -> None:
            """Take a value; `key` is not changed if the value is as written."""
            if reading.note:
                example = f"{where}: {key} {short_repr(row.get(key))}"
                self.findings.add(reading.note, coco_values.EFFECTS[reading.note], example)
            if reading.value is not row.get(key):
                changes[key] = reading.value

        image_id = self.images.read_id(row.get("image_id"))
        place = self._places.get(image_id) if image_id is not None else None
        category_id = self.read_category_id(row.get("category_id"))
        if place is None:
            problem = f"image_id {short_repr(row.get('image_id'))} is not in 'images'"
            problems[Flag.UNKNOWN_IMAGE] = problem
        elif type(row.get("image_id")) is not int:
            use("image_id", _converted(image_id, row["image_id"]))
        if category_id not in self._category_ids:
            problems[Flag.UNKNOWN_CATEGORY] = self._unknown_category(row.get("category_id"))
        elif type(row.get("category_id")) is not int:
            use("category_id", _converted(category_id, row["category_id"]))
        crowd = row.get("iscrowd") or 0
        crowd = int(crowd) if isinstance(crowd, bool) else coco_values.integer(crowd)
        if crowd not in (0, 1):
            problem = f"iscrowd is {short_repr(row.get('iscrowd'))}, not 0 or 1"
            problems[Flag.BAD_CROWD] = problem
        elif type(row.get("iscrowd", 0)) is not int:
            changes["iscrowd"] = crowd
        is_ignored = coco_values.integer(row.get("ignore")) == 1
        for flag, is_set in ((Flag.CROWD, crowd == 1), (Flag.IGNORED, is_ignored)):
            if is_set:
                flags |= flag
                self.examples.setdefault(flag, where)
        if (area := row.get("area")) is not None:
            pixels = coco_values.number(area)
            if pixels is None or pixels < 0:
                effect = "They are computed from masks or boxes."
                self.findings.add("areas that are not square pixels", effect, f"{where}: {area}")
                changes["area"] = None
            else:
                use("area", _converted(pixels, area))
        if place is not None:
            size = self.images.sizes[place]
            if size[0]:
                self._read_shape(row, size, where, changes, problems, use)
            if self.keypoint_count:
                points = coco_values.read_keypoints(row.get("keypoints"), self.keypoint_count)
                if points.problem:
                    problems[Flag.BAD_KEYPOINTS] = points.problem
                else:
                    use("keypoints", points)
                    labeled = sum(v > 0 for v in points.value[2::3])
            elif row.get("keypoints"):
                effect = 'They are not used. Add "keypoints": ["nose", ...] to the category.'
                self.findings.add("keypoints that no category names", effect, where)
        for flag, problem in problems.items():
            flags |= flag
            self.examples.setdefault(flag, f"{where}: {problem}")
        flags |= Flag.REGION * ("region" in changes)
        if problems:
            changes[PROBLEM_KEY] = {int(flag): problem for flag, problem in problems.items()}
        row = {**row, **changes} if changes else row
        number = len(self.images.ids) if place is None else place
        return row, flags, number, category_id or 0, labeled

    def _unknown_category(self, written: Any) -> str:
        first, last = min(self._category_ids), max(self._category_ids)
        hint = ". Were they counted from 0?" if written == 0 and first == 1 else ""
        return (
            f"category_id {short_repr(written)} is not in 'categories', whose ids are {first} to "
            f"{last}{hint}"
        )

    def _read_shape(
        self,
        row: Entry,
        size: tuple[int, int],
        where: str,
        changes: Entry,
        problems: dict[Flag, str],
        use: Callable[[str, coco_values.Reading], None],
    ) -> None:
        """Read the box and the mask of an annotation."""
        box = coco_values.read_box(row.get("bbox"), *size)
        mask = coco_values.read_segmentation(row.get("segmentation"), *size)
        tight = None
        if box.problem and not mask.problem:
            tight = coco_values.mask_box(mask.value, *size)
        self.boxes += 1
        x, y, w, h = _four_numbers(row.get("bbox"))
        self.like_corners += 0 <= x < w <= size[1] and 0 <= y < h <= size[0]
        if box.note == coco_values.CLIPPED or "is outside" in (box.problem or ""):
            self.misplaced += 1
            self.first_misplaced = self.first_misplaced or f"{where}: bbox {row['bbox']}"
        if not box.problem:
            use("bbox", box)
        elif tight and (w <= 0 or h <= 0):
            use("bbox", coco_values.Reading(tight, note=coco_values.FROM_MASK))
        else:
            problems[Flag.BAD_BOX] = box.problem
            changes |= {"region": tight} if tight else {}
        if not mask.problem:
            use("segmentation", mask)
        elif row.get("segmentation"):
            problems[Flag.BAD_MASK] = mask.problem
        else:
            needed = "but MODEL.MASK_ON needs one (set it False to train on boxes)"
            problems[Flag.NO_MASK] = f"{mask.problem}, {needed}"

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


def _converted(value: Any, written: Any) -> coco_values.Reading:
    return coco_values.Reading(value, note=coco_values.TEXT if isinstance(written, str) else None)


def _four_numbers(box: Any) -> list[float]:
    """Return the numbers of a box; zeros if it does not have four."""
    values = coco_values.numbers(box)
    return values if values is not None and len(values) == 4 else [0.0] * 4
