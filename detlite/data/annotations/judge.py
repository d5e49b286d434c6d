"""Read annotations block by block: convert other notations, and judge all of them by `rules`.

Letters in shapes: N annotations of a block.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from detlite.data.findings import Findings
from detlite.files.errors import DataError, short_repr
from detlite.structures.masks.formats import Segmentation

from . import rules
from .heads import ImageTable
from .ids import Ids
from .notation import (
    ROTATED,
    Entry,
    Note,
    Odd,
    Row,
    is_other_notation,
    normalize,
    parse_row,
    segmentation_of,
)
from .selection import Flag

PROBLEM_KEY = "_problems"  # of a stored annotation: what is wrong with it, by flag
NO_ID = -(1 << 63)  # the `id` of an annotation that has no integer, and of unknown categories
# What is stored of an annotation. The box is NaN if it cannot be used, and the area 0.
JUDGED = np.dtype(
    [("id", "q"), ("flags", "u2"), ("image", "q"), ("category_id", "q"), ("labeled", "i2"),
     ("box", "d", 4), ("area", "d")]
)  # fmt: skip

CLIPPED: Note = "boxes that exceed their image", "They are clipped to it."
_FROM_MASK: Note = "missing or empty boxes with a valid mask", "The tight box of the mask is used."
PARTS: Note = "masks with unusable parts", "The other parts are used."
_AREAS: Note = "areas that are not square pixels", "They are computed from masks or boxes."
_NO_NAMES: Note = "keypoints that no category names", 'Add "keypoints": ["nose", ...] to it.'
_NOT_MEASURED: Note = (
    'objects with labeled keypoints and "num_keypoints": 0',
    "They are trained but not measured, as in pycocotools: correct or delete num_keypoints.",
)
# Doubtful values that are used unchanged.
_MISPLACED: Note = (
    "labeled keypoints at (0, 0), outside of the image, or all outside of the box",
    "Those outside are measured but not trained. Correct fractions and keypoints of another image "
    "size; the visibility of unlabeled keypoints is 0.",
)
_TINY: Note = "boxes with a side below one pixel", "They are used. Delete clicks without an object."
_DIFFERENT: Note = (
    f"boxes that differ from their masks, among the first {rules.SAMPLE}",
    "Correct boxes that are not [x, y, width, height], and run lengths that go along rows.",
)
QUADS = f"masks with four corners, as boxes have, of the first {rules.SAMPLE} annotations"
_decode = msgspec.json.Decoder(Entry).decode


@dataclass
class _Block:
    """The annotations of a block.

    Attributes:
        texts: the JSON texts in the file.
        first: the position of the first one in the file.
        entries: the annotations in COCO's types.
        odd: those in another notation, or that are changed.
        judged: JUDGED [N].
        limits: (width, height) of their images, float64 [N, 2]; 0 if unknown.
        is_known, is_located: the image is known, and it has a size, bool [N].
        codes: the rules that boxes and masks break, see `rules`; -1: they are not judged.
    """

    texts: Sequence[Any]
    first: int
    entries: list[Entry]
    odd: dict[int, Odd]
    judged: np.ndarray
    limits: np.ndarray
    is_known: np.ndarray
    is_located: np.ndarray
    codes: dict[Flag, np.ndarray] = field(default_factory=dict)

    def row(self, n: int) -> Row:
        """Return an annotation as written."""
        return self.odd[n].row if n in self.odd else json.loads(bytes(self.texts[n]))

    def where(self, n: int, *keys: str) -> str:
        """Return the name of an annotation for messages, with the values of some fields."""
        row = self.row(n)
        values = ", ".join(f"{key} {short_repr(row.get(key))}" for key in keys)
        return annotation_name(row, self.first + n) + f": {values}" * bool(keys)

    def mask(self, n: int) -> tuple[Segmentation, int, int]:
        """Return the mask of an annotation, and the height and width of its image."""
        width, height = self.limits[n].tolist()
        return segmentation_of(self.entries[n]), int(height), int(width)


class Judge:
    """Reads annotations, collects findings, and counts boxes that are not in their images.

    Args:
        file: the name of the annotation file in messages.
        images, categories, category_ids: what annotations refer to.
        points: number of keypoints of an object.
        findings: collects what was read in another notation, and where.
        sizeless: images without a size are as large as the boxes need.

    Attributes:
        examples: the first annotation with each flag, and what is wrong with it.
    """

    def __init__(
        self,
        file: object,
        images: ImageTable,
        categories: Sequence[Row],
        category_ids: Ids,
        points: int,
        findings: Findings,
        sizeless: bool = False,
    ) -> None:
        self._file, self._points, self._sizeless = file, points, sizeless
        self.findings, self.examples = findings, dict[int, str]()
        numbers, unknown = images.numbers, len(images.ids)
        remember = lru_cache(None, typed=True)
        self._image_of = remember(lambda x: numbers.get(images.known.number(x), unknown))  # type: ignore[arg-type]
        self._category_of = remember(
            lambda x: NO_ID if (k := category_ids.number(x)) is None else k
        )
        self._sizes = np.array([*images.sizes, (0, 0)], np.float64)[:, ::-1]
        self._image_ids = [*map(str, images.ids), ""]
        self._facts = [row["id"] for row in categories], points
        self._boxes = self._like_corners = self._misplaced = 0
        self._first_misplaced = ""
        self._compared, self._different = list[str](), list[str]()  # their images
        self._quads, self._first_different = 0, ""

    def read(self, texts: Sequence[Any], first: int) -> tuple[list[Any], np.ndarray]:
        """Read the JSON texts of annotations from position `first` of the file.

        Returns:
            The texts to store, which have COCO's notation, and JUDGED [N].
        """
        block = self._read_entries(texts, first)
        entries, judged, located = block.entries, block.judged, block.is_located
        boxes = self._judge_boxes(block)
        codes, pixels, parts = rules.judge_masks(entries, block.limits)
        block.codes[Flag.BAD_MASK] = np.where(located, codes, -1)
        for n in np.flatnonzero(parts & located).tolist():
            odd = block.odd.setdefault(n, Odd(row := block.row(n), entries[n], {**row}))
            odd.use("segmentation", rules.valid_polygons(entries[n], block.limits[n]), PARTS)
        self._use_boxes_of_masks(block, boxes)
        tiny = judged["box"][:, 2:].min(1, initial=np.inf) < rules.TINY
        self._note(block, _TINY, tiny & located, "bbox")
        self._judge_areas(block, pixels)
        bad_keypoints = self._judge_keypoints(block)
        self._compare(block)
        crowds = np.array([entry.iscrowd for entry in entries])
        for flag, chosen in (
            (Flag.CROWD, crowds == 1),
            (Flag.IGNORED, np.array([entry.ignore for entry in entries], bool)),
            (Flag.UNKNOWN_IMAGE, ~block.is_known),
            (Flag.UNKNOWN_CATEGORY, judged["category_id"] == NO_ID),
            (Flag.BAD_BOX, block.codes[Flag.BAD_BOX] > 0),
            (Flag.BAD_CROWD, crowds < 0),
            (Flag.NO_MASK, located & (codes < 0)),
            (Flag.BAD_MASK, block.codes[Flag.BAD_MASK] > 0),
            (Flag.BAD_KEYPOINTS, bad_keypoints),
        ):
            judged["flags"] |= np.where(chosen, np.uint16(flag), np.uint16(0))
            if flag < Flag.REGION and chosen.any():
                self.examples.setdefault(flag, block.where(int(chosen.argmax())))
        judged["category_id"][judged["category_id"] == NO_ID] = 0
        return self._written(block), judged

    def _read_entries(self, texts: Sequence[Any], first: int) -> _Block:
        entries: list[Entry] = []
        odd: dict[int, Odd] = {}
        for n, text in enumerate(texts):
            try:
                entry = _decode(text)
                is_odd = is_other_notation(entry)
            except (ValueError, RecursionError):
                is_odd = True
            if is_odd:
                odd[n] = normalize(parse_row(self._file, "annotations", first + n, text))
                entry = odd[n].entry
            entries.append(entry)
        judged = np.zeros(len(texts), JUDGED)
        judged["id"] = [entry.id if type(entry.id) is int else NO_ID for entry in entries]
        judged["image"] = [self._image_of(entry.image_id) for entry in entries]
        judged["category_id"] = [self._category_of(entry.category_id) for entry in entries]
        judged["box"] = np.array([entry.bbox for entry in entries], np.float64).reshape(-1, 4)
        limits, is_known = self._sizes[judged["image"]], judged["image"] < len(self._sizes) - 1
        if self._sizeless:
            ends = judged["box"][:, :2] + judged["box"][:, 2:]
            extent = np.ceil(np.nan_to_num(ends, nan=1.0)).clip(1, 1 << 30)
            limits = np.where((limits[:, :1] == 0) & is_known[:, None], extent, limits)
        return _Block(texts, first, entries, odd, judged, limits, is_known, limits[:, 0] > 0)

    def _note(self, block: _Block, note: Note, chosen: np.ndarray, *keys: str) -> None:
        """Report the chosen annotations, bool [N], with fields of the first one as the example."""
        if chosen.any():
            example = block.where(int(chosen.argmax()), *keys)
            self.findings.add(*note, example, images=self._images(block, chosen))

    def _images(self, block: _Block, chosen: np.ndarray | int) -> list[str]:
        """Return the ids of the images of annotations; "" for unknown ones."""
        numbers = np.atleast_1d(block.judged["image"][chosen])
        return [self._image_ids[number] for number in numbers.tolist()]

    def _judge_boxes(self, block: _Block) -> np.ndarray:
        """Judge boxes, and count those that exceed their images far. Returns them as written."""
        boxes, located = block.judged["box"].copy(), block.is_located
        self._boxes += int(located.sum())
        self._like_corners += int((rules.look_like_corners(boxes, block.limits) & located).sum())
        codes, clipped, far = rules.judge_boxes(boxes, block.limits)
        block.codes[Flag.BAD_BOX] = codes = np.where(located, codes, -1)
        block.judged["box"] = np.where(codes[:, None] == 0, clipped, np.nan)
        far &= located
        far[[n for n, odd in block.odd.items() if odd.notes.get("bbox") == ROTATED]] = False
        self._note(block, CLIPPED, far, "bbox")
        misplaced = far | (codes == rules.BOX_OUTSIDE)
        if misplaced.any() and not self._misplaced:
            self._first_misplaced = block.where(int(misplaced.argmax()), "bbox")
        self._misplaced += int(misplaced.sum())
        return boxes

    def _use_boxes_of_masks(self, block: _Block, boxes: np.ndarray) -> None:
        """Use the boxes of valid masks for missing ones, and as regions for wrong ones."""
        codes, masks = block.codes[Flag.BAD_BOX], block.codes[Flag.BAD_MASK]
        from_mask = np.zeros(len(codes), bool)
        for n in np.flatnonzero((codes > 0) & (masks == 0)).tolist():
            if (tight := rules.mask_box(*block.mask(n))) is not None:
                block.judged["box"][n] = tight
                from_mask[n] = not boxes[n, 2:].min() > 0  # also NaN
                block.judged["flags"][n] |= 0 if from_mask[n] else Flag.REGION
        codes[from_mask] = 0
        self._note(block, _FROM_MASK, from_mask, "bbox")

    def _judge_areas(self, block: _Block, pixels: np.ndarray) -> None:
        """Set the areas, of masks or boxes if they are not given in pixels."""
        judged, has_mask = block.judged, block.codes[Flag.BAD_MASK] == 0
        boxes = np.where(judged["flags"][:, None] & Flag.REGION, np.nan, judged["box"])
        areas = np.array([entry.area for entry in block.entries], np.float64)  # None becomes NaN
        valid = rules.judge_areas(areas, boxes, block.limits)
        self._note(block, _AREAS, ~np.isnan(areas) & ~valid, "area")
        drawn = np.where(has_mask, pixels, boxes[:, 2] * boxes[:, 3])
        for n in np.flatnonzero(~valid & has_mask & (pixels == 0)).tolist():
            drawn[n] = rules.mask_area(*block.mask(n))
        judged["area"] = np.where(valid, areas, np.nan_to_num(drawn) * block.is_located)

    def _judge_keypoints(self, block: _Block) -> np.ndarray:
        """Count the labeled keypoints. Returns bool [N], True for unusable ones."""
        points, known = [entry.keypoints for entry in block.entries], block.is_known
        if not self._points:
            has = np.fromiter(map(bool, points), bool, len(points))
            self._note(block, _NO_NAMES, has & known)
            return has & False
        bad, labeled, misplaced = rules.judge_keypoints(
            points, self._points, block.judged["box"], block.limits
        )
        block.judged["labeled"] = labeled = labeled * known
        self._note(block, _MISPLACED, misplaced & block.is_located, "keypoints", "bbox")
        unmeasured = np.array([entry.num_keypoints == 0 for entry in block.entries], bool)
        self._note(block, _NOT_MEASURED, unmeasured & (labeled > 0))
        return bad & known

    def _compare(self, block: _Block) -> None:
        """Compare the first boxes with the boxes of their masks, and count differences."""
        has_both = (block.codes[Flag.BAD_BOX] == 0) & (block.codes[Flag.BAD_MASK] == 0)
        for n in np.flatnonzero(has_both)[: rules.SAMPLE - len(self._compared)].tolist():
            self._compared += self._images(block, n)
            self._quads += rules.is_quadrilateral(block.mask(n)[0])
            tight = rules.mask_extent(*block.mask(n))
            if tight is not None and not rules.boxes_match(block.judged["box"][n], tight):
                self._different += self._images(block, n)
                example = f"{block.where(n, 'bbox')}, box of the mask {tight}"
                self._first_different = self._first_different or example

    def _written(self, block: _Block) -> list[Any]:
        """Return the texts to store: as written, or with changes and problems."""
        texts, flags = list(block.texts), block.judged["flags"]
        bad = np.flatnonzero(flags >= Flag.UNKNOWN_IMAGE)
        for n in sorted({*bad.tolist(), *block.odd}):
            row, odd, problems = block.row(n), block.odd.get(n), dict[int, str]()
            for key, note in odd.notes.items() if odd else ():
                named = bool(self._points) or key != "keypoints"
                if named and not flags[n] & rules.FIELDS.get(key, 0):
                    self.findings.add(*note, block.where(n, key), images=self._images(block, n))
            for flag in rules.FLAGS if flags[n] >= Flag.UNKNOWN_IMAGE else ():
                if flags[n] & flag:
                    code = int(block.codes[flag][n]) if flag in block.codes else 1
                    height, width = block.mask(n)[1:]
                    text = rules.problem_text(row, flag, code, height, width, *self._facts)
                    problems[int(flag)] = text
                    self.examples.setdefault(flag, f"{block.where(n)}: {text}")
            stored = odd.stored if odd else row
            texts[n] = json.dumps(stored | {PROBLEM_KEY: problems} if problems else stored).encode()
        return texts

    def finish(self) -> None:
        """Raise DataError if most boxes are outside their images, or all look like corners.

        Report a finding if most boxes differ from their masks, or all masks have four corners.
        """
        compared = len(self._compared)
        if self._quads == compared >= rules.MIN_BOXES:
            effect = "To train on boxes only, set MODEL.MASK_ON False."
            self.findings.add(QUADS, effect, entry="mask", images=self._compared)
        if len(self._different) >= max(rules.MIN_BOXES, compared / 2 + 0.5):
            self.findings.add(*_DIFFERENT, self._first_different, images=self._different)
        misplaced, boxes = self._misplaced, self._boxes
        corners = self._like_corners == boxes >= rules.MIN_BOXES and misplaced
        if corners or (misplaced >= rules.MIN_BOXES and misplaced > boxes / 2):
            raise DataError(
                f"{self._file}: {misplaced} of {boxes} boxes are outside of their images or exceed "
                f"them, for example {self._first_misplaced}. If these are corners "
                "[x1, y1, x2, y2], convert them to [x, y, width, height]; if they belong to "
                "images of another size, scale them"
            )


def annotation_name(row: Row, position: int) -> str:
    """Return the name of an annotation in messages, by its ids as written."""
    name = short_repr(row["id"]) if "id" in row else f"at position {position}"
    return f"annotation {name} (image {short_repr(row.get('image_id'))})"
