"""Read the annotations of a file into COCO's notation, and report other notations."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detlite.data.datasets import coco_masks, coco_values
from detlite.data.findings import Findings
from detlite.files.errors import DataError, short_repr

from .normalization import Entry, Ids, ImageTable
from .states import PROBLEM_KEY, QUADS, REGION_KEY, SAMPLE, Flag, annotation_name

_MIN_BOXES = 4  # fewer boxes cannot show that all are wrong
# Doubtful values that are used unchanged.
_MISPLACED = "labeled keypoints at (0, 0), outside of the image, or all outside of the box"
_DIFFERENT = f"boxes that differ from their masks, among the first {SAMPLE}"
REPEATED = "annotations with the image, category and box of another one"
_TINY = "boxes with a side below one pixel"
DOUBTS = {_MISPLACED, _DIFFERENT, QUADS, _TINY, REPEATED}
_MISMATCH = (
    "Both are used as they are written. Correct boxes that are not [x, y, width, height], and run "
    "lengths along rows: COCO's are along columns."
)
_NOT_TRAINED = (
    "Those outside of the box are measured but not trained. Correct them if they are fractions or "
    "of an image of another size; the visibility of unlabeled keypoints is 0."
)


class AnnotationReader:
    """Reads annotations, collects findings, and counts boxes that are not in their images.

    Args:
        images, categories, read_category_id: what annotations refer to.
        keypoint_count: number of keypoints of an object.
        findings: collects what was read in another notation, and where.

    Attributes:
        examples: the first annotation with each flag, and what is wrong with it.
    """

    def __init__(
        self,
        images: ImageTable,
        categories: list[Entry],
        read_category_id: Ids,
        keypoint_count: int,
        findings: Findings,
    ) -> None:
        self.findings = findings
        self.examples: dict[int, str] = {}
        self._images, self._read_category_id = images, read_category_id
        self._numbers = {image_id: number for number, image_id in enumerate(images.ids)}
        self._numbers |= {other: self._numbers[first] for other, first in images.same.items()}
        self._category_ids = {row["id"] for row in categories}
        self._keypoint_count = keypoint_count
        self._boxes = self._like_corners = self._misplaced = 0
        self._first_misplaced = ""
        self._compared = self._mismatched = self._quads = 0
        self._first_mismatched = ""

    def read(self, row: Entry, position: int) -> tuple[Entry, int, int, int, int, int, float]:
        """Read an annotation.

        Returns:
            The annotation, the same object if it is in COCO's notation; its flags; the index of
            its image, or the number of images if unknown; the id of its category, 0 if unknown;
            its number of labeled keypoints; a hash of its image, category and box; and its number
            of pixels, 0 if unknown.
        """
        self._row, self._where = row, annotation_name(row, position)
        self._changes: Entry = {}
        self._problems: dict[int, str] = {}
        self._flags = labeled = 0
        self._box: Sequence[float] = ()  # only if it is valid
        self._area = 0.0
        unknown = len(self._images.ids)
        image_id = self._images.read_id(row.get("image_id"))
        number = unknown if image_id is None else self._numbers.get(image_id, unknown)
        if number == unknown:
            problem = f"image_id {short_repr(row.get('image_id'))} is not in 'images'"
            self._flag(Flag.UNKNOWN_IMAGE, problem)
        self._read_marks()
        category_id = self._read_category_id(row.get("category_id"))
        if category_id in self._category_ids:
            self._store("category_id", category_id)
        else:
            self._flag(Flag.UNKNOWN_CATEGORY, self._unknown_category(row.get("category_id")))
        if image_id is not None and number < unknown:
            self._store("image_id", self._images.same.get(image_id, image_id))
            if self._images.sizes[number][0]:
                self._read_shape(*self._images.sizes[number])
            labeled = self._read_keypoints(*self._images.sizes[number])
        if self._problems:
            self._changes[PROBLEM_KEY] = self._problems
        read = {**row, **self._changes} if self._changes else row
        key = hash((number, category_id, *(self._box or [position])))
        return read, self._flags, number, category_id or 0, labeled, key, self._area

    def _flag(self, flag: Flag, problem: str = "") -> None:
        """Set a flag of the annotation, and record what is wrong with it, if anything."""
        self._flags |= flag
        self.examples.setdefault(flag, f"{self._where}: {problem}" if problem else self._where)
        if problem:
            self._problems[int(flag)] = problem

    def _store(self, key: str, value: Any, note: coco_values.Note | None = None) -> None:
        """Store a value that was read, and report it if it was written in another notation."""
        written = self._row.get(key)
        if note is None and isinstance(written, str):
            note = coco_values.TEXT
        if note:
            self.findings.add(*note, f"{self._where}: {key} {short_repr(written)}")
        if value is not written:
            self._changes[key] = value

    def _read_marks(self) -> None:
        """Read `iscrowd`, `ignore` and `area`."""
        row = self._row
        written = row.get("iscrowd", row.get("isCrowd"))
        crowd, ignore = (
            {"true": 1, "false": 0}.get(str(value).lower(), coco_values.parse_integer(value))
            for value in (written or 0, row.get("ignore") or 0)
        )
        if crowd not in (0, 1):
            self._flag(Flag.BAD_CROWD, f"iscrowd is {short_repr(written)}, not 0 or 1")
        elif crowd != row.get("iscrowd", 0) or type(row.get("iscrowd", 0)) is not int:
            self._changes["iscrowd"] = crowd
        if crowd == 1:
            self._flag(Flag.CROWD)
        if ignore == 1:
            self._flag(Flag.IGNORED)
        if (area := row.get("area")) is not None:
            self._area = coco_values.parse_number(area) or 0
            if self._area <= 0:
                self._drop_area()
            else:
                self._store("area", self._area)

    def _drop_area(self) -> None:
        effect = "They are computed from masks or boxes."
        example = f"{self._where}: {self._row['area']}"
        self.findings.add("areas that are not square pixels", effect, example)
        self._changes["area"], self._area = None, 0

    def _read_keypoints(self, height: int, width: int) -> int:
        """Read the keypoints, and return the number of labeled ones."""
        written = self._row.get("keypoints")
        if not self._keypoint_count:
            if written:
                effect = 'They are not used. Add "keypoints": ["nose", ...] to the category.'
                self.findings.add("keypoints that no category names", effect, self._where)
            return 0
        points = coco_values.read_keypoints(written, self._keypoint_count)
        if points.problem:
            self._flag(Flag.BAD_KEYPOINTS, points.problem)
            return 0
        self._store("keypoints", points.value, points.note)
        if self._box and coco_values.has_misplaced_keypoints(
            points.value, self._box, height, width
        ):
            example = f"{self._where}: keypoints {short_repr(points.value)}, bbox {self._box}"
            self.findings.add(_MISPLACED, _NOT_TRAINED, example)
        return sum(v > 0 for v in points.value[2::3])

    def _unknown_category(self, written: Any) -> str:
        first, last = min(self._category_ids), max(self._category_ids)
        hint = ". Were they counted from 0?" if written == 0 and first == 1 else ""
        hint = ". Were they counted from 1?" if written == last + 1 and first == 0 else hint
        return (
            f"category_id {short_repr(written)} is not in 'categories', whose ids are {first} to "
            f"{last}{hint}"
        )

    def _read_shape(self, height: int, width: int) -> None:
        """Read the box and the mask."""
        row = self._row
        box = coco_values.read_rotated_box(row, height, width)
        mask = coco_masks.read_segmentation(row.get("segmentation"), height, width, box.value)
        self._boxes += 1
        numbers = coco_values.parse_numbers(row.get("bbox")) or []
        x, y, w, h = numbers if len(numbers) == 4 else [0.0] * 4
        self._like_corners += 0 <= x < w <= width and 0 <= y < h <= height
        if box.note == coco_values.CLIPPED or "is outside" in (box.problem or ""):
            self._misplaced += 1
            self._first_misplaced = self._first_misplaced or f"{self._where}: bbox {row['bbox']}"
        if box.problem and not mask.problem:
            tight = coco_masks.mask_box(mask.value, height, width)
            if tight and (w <= 0 or h <= 0):
                box = coco_values.Reading(tight, note=coco_values.FROM_MASK)
            elif tight:
                self._flags |= Flag.REGION
                self._changes[REGION_KEY] = tight
        if box.problem:
            self._flag(Flag.BAD_BOX, box.problem)
        else:
            self._box = box.value
            self._store("bbox", box.value, box.note)
            if min(box.value[2:]) < 1:
                effect = "They are used. Delete them if they are clicks without an object."
                self.findings.add(_TINY, effect, f"{self._where}: bbox {box.value}")
            if box.note == coco_values.ROTATED:  # files that are written from it
                self._changes["attributes"] = {**row["attributes"], "rotation": 0}
        if (
            self._area
            and self._box
            and not coco_values.is_area(self._area, self._box, height, width)
        ):
            self._drop_area()
        if not self._area and mask.problem:
            self._area = 0.0 if box.problem else box.value[2] * box.value[3]
        elif not self._area:
            self._area = coco_masks.mask_area(mask.value, height, width)
        if not mask.problem:
            self._store("segmentation", mask.value, mask.note)
            if not box.problem and self._compared < SAMPLE:
                self._compare(box.value, coco_masks.mask_extent(mask.value, height, width))
                self._quads += coco_masks.is_quadrilateral(mask.value)
        elif row.get("segmentation"):
            self._flag(Flag.BAD_MASK, mask.problem)
        else:
            needed = "but masks need one (MODEL.MASK_ON False: boxes only)"
            self._flag(Flag.NO_MASK, f"{mask.problem}, {needed}")

    def _compare(self, box: Sequence[float], extent: Sequence[float]) -> None:
        """Compare a box with the box of its mask, and count differences."""
        self._compared += 1
        if not coco_masks.boxes_match(box, extent):
            self._mismatched += 1
            example = f"{self._where}: bbox {box}, box of the mask {extent}"
            self._first_mismatched = self._first_mismatched or example

    def check_boxes(self, file: Path) -> None:
        """Raise DataError if most boxes are outside their images, or all look like corners.

        Report a finding if most boxes differ from their masks, or all masks have four corners.
        """
        if self._quads == self._compared >= _MIN_BOXES:
            effect = "To train on boxes only, set MODEL.MASK_ON False."
            self.findings.add(QUADS, effect, entry="mask", count=self._quads)
        if self._mismatched >= _MIN_BOXES and self._mismatched > self._compared / 2:
            example, count = self._first_mismatched, self._mismatched
            self.findings.add(_DIFFERENT, _MISMATCH, example, count=count)
        misplaced, boxes = self._misplaced, self._boxes
        corners = self._like_corners == boxes >= _MIN_BOXES and misplaced
        if corners or (misplaced >= _MIN_BOXES and misplaced > boxes / 2):
            raise DataError(
                f"{file}: {misplaced} of {boxes} boxes are outside of their images or exceed them, "
                f"for example {self._first_misplaced}. If these are corners [x1, y1, x2, y2], "
                "convert them to [x, y, width, height]; if they belong to images of another size, "
                "scale them"
            )
