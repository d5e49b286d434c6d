"""Read annotations block by block: convert other notations, and judge all of them by `rules`.

Letters in shapes: N annotations of a block.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from detlite.data.findings import Findings
from detlite.files.errors import DataError, short_repr
from detlite.structures.masks.formats import Segmentation, encode_bitmap, to_bitmap

from . import rules
from .heads import ImageTable, Row
from .ids import Ids
from .notation import ROTATED, Entry, Note, Odd, Rle, is_other_notation, normalize
from .selection import Flag

PROBLEM_KEY = "_problems"  # of a stored annotation: what is wrong with it, by flag
# What is stored of an annotation. The box is NaN if it cannot be used, and the area 0.
JUDGED = np.dtype(
    [("id", "q"), ("flags", "u2"), ("image", "q"), ("category_id", "q"), ("labeled", "i2"),
     ("box", "d", 4), ("area", "d")]
)  # fmt: skip

CLIPPED: Note = "boxes that exceed their image", "They are clipped to it."
_FROM_MASK: Note = "missing or empty boxes with a valid mask", "The tight box of the mask is used."
PARTS: Note = (
    "masks with unusable parts, such as polygons of two points",
    "The other parts are used.",
)
_SWAPPED: Note = (
    "run lengths of size [width, height]",
    "They are read so that masks fit their boxes.",
)
_AREAS: Note = "areas that are not square pixels", "They are computed from masks or boxes."
_NO_NAMES: Note = (
    "keypoints that no category names",
    'They are not used. Add "keypoints": ["nose", ...] to the category.',
)
_NOT_MEASURED: Note = (
    'objects with labeled keypoints and "num_keypoints": 0',
    "They are trained but not measured, as in pycocotools: correct or delete num_keypoints.",
)
# Doubtful values that are used unchanged.
_MISPLACED: Note = (
    "labeled keypoints at (0, 0), outside of the image, or all outside of the box",
    "Those outside of the box are measured but not trained. Correct them if they are fractions or "
    "of an image of another size; the visibility of unlabeled keypoints is 0.",
)
_TINY: Note = (
    "boxes with a side below one pixel",
    "They are used. Delete them if they are clicks without an object.",
)
_DIFFERENT: Note = (
    f"boxes that differ from their masks, among the first {rules.SAMPLE}",
    "Both are used as they are written. Correct boxes that are not [x, y, width, height], and run "
    "lengths along rows: COCO's are along columns.",
)
QUADS = f"masks with four corners, as boxes have, of the first {rules.SAMPLE} annotations"

_NO_CATEGORY = -(1 << 63)  # the id of an unknown category, within this module
_decode = msgspec.json.Decoder(Entry).decode


@dataclass
class _AnnotationBlock:
    """The annotations of a block, what is known of them, and their images' sizes."""

    texts: Sequence[Any]
    first: int  # position in the file
    entries: list[Entry]
    odd: dict[int, Odd]
    limits: np.ndarray  # float64 [N, 2], (width, height) of the images, 0 if unknown
    judged: np.ndarray  # JUDGED [N]

    def row(self, n: int) -> Row:
        """Return an annotation as written."""
        return self.odd[n].row if n in self.odd else json.loads(bytes(self.texts[n]))

    def where(self, n: int) -> str:
        return annotation_name(self.row(n), self.first + n)

    def size(self, n: int) -> tuple[int, int]:
        """Return the (height, width) of the image of an annotation."""
        width, height = self.limits[n].tolist()
        return int(height), int(width)


class Judge:
    """Reads annotations, collects findings, and counts boxes that are not in their images.

    Args:
        file: the name of the annotation file in messages.
        images, categories, category_ids: what annotations refer to.
        keypoint_count: number of keypoints of an object.
        findings: collects what was read in another notation, and where.
        sizeless: judge boxes in images without a size, as if these were large enough.

    Attributes:
        examples: the first annotation with each flag, and what is wrong with it.
        unnamed: the first annotation whose id is not an integer.
    """

    def __init__(
        self,
        file: object,
        images: ImageTable,
        categories: Sequence[Row],
        category_ids: Ids,
        keypoint_count: int,
        findings: Findings,
        sizeless: bool = False,
    ) -> None:
        self._file, self.findings = file, findings
        self.examples: dict[int, str] = {}
        self.unnamed = ""
        numbers, unknown = images.numbers, len(images.ids)
        self._image_of = _Known(lambda value: numbers.get(images.known.number(value), unknown))  # type: ignore[arg-type]
        self._category_of = _Known(lambda value: _or_none(category_ids.number(value)))
        self._sizes = np.array([*images.sizes, (0, 0)], np.float64)[:, ::-1]
        self._known = {row["id"] for row in categories}
        self._points, self._sizeless = keypoint_count, sizeless
        self._boxes = self._like_corners = self._misplaced = 0
        self._first_misplaced = self._first_mismatched = ""
        self._compared = self._mismatched = self._quads = 0

    def read(self, texts: Sequence[Any], first: int) -> tuple[list[Any], np.ndarray]:
        """Read the JSON texts of annotations from position `first` of the file.

        Returns:
            The texts to store, which have COCO's notation, and JUDGED [N].
        """
        block = self._decode(texts, first)
        entries, judged = block.entries, block.judged
        seen = block.limits[:, 0] > 0
        boxes = np.array([entry.bbox for entry in entries], np.float64).reshape(-1, 4)
        self._like_corners += int((rules.look_like_corners(boxes, block.limits) & seen).sum())
        self._boxes += int(seen.sum())
        box_codes, boxes, far = rules.judge_boxes(boxes, block.limits)
        mask_codes, pixels, parts = rules.judge_masks(entries, block.limits)
        box_codes[~seen], mask_codes[~seen], far[~seen], parts[~seen] = -1, -1, False, False
        boxes[box_codes != 0] = np.nan
        judged["box"] = boxes
        self._note_misplaced(block, box_codes, far)
        for n in np.flatnonzero(parts):
            rings = entries[n].segmentation
            assert isinstance(rings, list)
            valid = rules.judge_polygons(rings, np.tile(block.limits[n], (len(rings), 1)))[0] == 0
            kept = [ring for ring, is_valid in zip(rings, valid, strict=True) if is_valid]
            self._change_mask(block, int(n), kept, PARTS)
        for n in np.flatnonzero(seen & (box_codes == 0) & (mask_codes > 0)):
            self._unswap(block, int(n), mask_codes, pixels)
        for n in np.flatnonzero(seen & (box_codes > 0) & (mask_codes == 0)):
            self._box_of_mask(block, int(n), box_codes)
        tiny = judged["box"][:, 2:].min(1, initial=np.inf) < rules.TINY
        self._note(block, _TINY, tiny & seen, lambda n: f"bbox {_shown(judged['box'][n])}")
        self._judge_areas(block, mask_codes, pixels)
        self._judge_keypoints(block, seen)
        self._compare(block, (box_codes == 0) & (mask_codes == 0))
        self._set_flags(block, box_codes, mask_codes)
        return self._written(block, box_codes, mask_codes), judged

    def _decode(self, texts: Sequence[Any], first: int) -> _AnnotationBlock:
        entries: list[Entry] = []
        odd: dict[int, Odd] = {}
        for n, text in enumerate(texts):
            try:
                entry = _decode(text)
                is_odd = is_other_notation(entry)
            except (ValueError, RecursionError):
                is_odd = True
            if is_odd:
                row = json.loads(bytes(text))
                if not isinstance(row, dict):
                    raise DataError(
                        f"{self._file}: not in COCO format: 'annotations' must be a list of "
                        f"objects, but entry {first + n} is {short_repr(row)}"
                    )
                odd[n] = normalize(row)
                entry = odd[n].entry
            entries.append(entry)
        judged = np.zeros(len(entries), JUDGED)
        for key, known in (("image_id", self._image_of), ("category_id", self._category_of)):
            written = [getattr(entry, key) for entry in entries]
            for n in odd:  # True and 1.0 are other ids than 1
                written[n] = None
            numbers = np.fromiter(map(known.__getitem__, written), np.int64, len(written))
            for n in odd:
                numbers[n] = known.read(getattr(entries[n], key))
            judged["image" if key == "image_id" else key] = numbers
        ids = [entry.id if type(entry.id) is int else None for entry in entries]
        judged["id"] = [0 if own_id is None else own_id for own_id in ids]
        if None in ids and not self.unnamed:
            n = ids.index(None)
            written_id = (odd[n].row if n in odd else {"id": entries[n].id}).get("id")
            self.unnamed = f"annotation at position {first + n} has id {written_id!r}"
        limits = self._sizes[judged["image"]]
        if self._sizeless:
            boxes = np.array([entry.bbox for entry in entries], np.float64).reshape(-1, 4)
            extent = np.ceil(np.nan_to_num(boxes[:, :2] + boxes[:, 2:], nan=1.0))
            known_image = judged["image"] < len(self._sizes) - 1
            free = (limits[:, :1] == 0) & known_image[:, None]
            limits = np.where(free, extent.clip(1, 1 << 30), limits)
        return _AnnotationBlock(texts, first, entries, odd, limits, judged)

    def _note(
        self,
        block: _AnnotationBlock,
        note: Note,
        chosen: np.ndarray,
        describe: Callable[[int], str] | None,
    ) -> None:
        """Report the chosen annotations, bool [N], with the first one as the example."""
        if len(found := np.flatnonzero(chosen)):
            n = int(found[0])
            text = f"{block.where(n)}: {describe(n)}" if describe else block.where(n)
            self.findings.add(*note, text, count=len(found))

    def _note_misplaced(self, block: _AnnotationBlock, codes: np.ndarray, far: np.ndarray) -> None:
        """Report and count boxes that are outside of their images or exceed them far."""
        rotated = [n for n, odd in block.odd.items() if odd.notes.get("bbox") == ROTATED]
        clipped = far.copy()
        clipped[rotated] = False

        def written(n: int) -> str:
            return f"bbox {short_repr(block.row(n).get('bbox'))}"

        self._note(block, CLIPPED, clipped, written)
        misplaced = np.flatnonzero(clipped | np.isin(codes, rules.BOX_OUTSIDE))
        if len(misplaced) and not self._first_misplaced:
            n = int(misplaced[0])
            self._first_misplaced = f"{block.where(n)}: {written(n)}"
        self._misplaced += len(misplaced)

    def _change_mask(self, block: _AnnotationBlock, n: int, mask: Segmentation, note: Note) -> None:
        """Use another mask than the annotation has."""
        if n not in block.odd:
            block.odd[n] = Odd(block.row(n), block.entries[n])
        odd = block.odd[n]
        is_rle = isinstance(mask, dict)
        odd.entry.segmentation = Rle(mask["counts"], tuple(mask["size"])) if is_rle else mask  # type: ignore[assignment, call-overload]
        odd.changes["segmentation"], odd.notes["segmentation"] = mask, note

    def _unswap(
        self, block: _AnnotationBlock, n: int, codes: np.ndarray, pixels: np.ndarray
    ) -> None:
        """Read an RLE of size [width, height], with runs along columns or rows as fits the box."""
        mask, (height, width) = block.entries[n].segmentation, block.size(n)
        if not rules.is_swapped(mask, codes[n], height, width):
            return
        assert isinstance(mask, Rle)
        box = block.judged["box"][n].tolist()
        swapped = Entry(0, 0, (0, 0, 0, 0), segmentation=Rle(mask.counts, (height, width)))
        if rules.judge_masks([swapped], block.limits[n : n + 1])[0][0]:
            return
        counts: Any = mask.counts
        bitmaps = (
            to_bitmap({"size": [height, width], "counts": counts}, height, width),
            to_bitmap({"size": [width, height], "counts": counts}, width, height).T,
        )
        fit = [
            bitmap for bitmap in bitmaps
            if rules.boxes_match(box, rules.tight_box(bitmap) or [0] * 4)
        ]  # fmt: skip
        if len(fit) == 1 or (fit and (fit[0] == fit[1]).all()):
            self._change_mask(block, n, encode_bitmap(fit[0]), _SWAPPED)
            codes[n], pixels[n] = 0, float(fit[0].sum())

    def _box_of_mask(self, block: _AnnotationBlock, n: int, codes: np.ndarray) -> None:
        """Use the box of a valid mask for a missing one, or as a region for a wrong one."""
        tight = rules.mask_box(segmentation_of(block.entries[n]), *block.size(n))
        if tight is None:
            return
        block.judged["box"][n] = tight
        *_, w, h = block.entries[n].bbox
        if codes[n] != rules.NO_BOX and min(w, h) > 0:
            block.judged["flags"][n] |= Flag.REGION
            return
        codes[n] = 0
        if n in block.odd:
            block.odd[n].problems.pop(Flag.BAD_BOX, None)
        text = f"{block.where(n)}: bbox {short_repr(block.row(n).get('bbox'))}"
        self.findings.add(*_FROM_MASK, text)

    def _judge_areas(
        self, block: _AnnotationBlock, mask_codes: np.ndarray, pixels: np.ndarray
    ) -> None:
        """Set the areas, of masks or boxes if they are not given in pixels."""
        entries, judged = block.entries, block.judged
        boxes = np.where((judged["flags"] & Flag.REGION > 0)[:, None], np.nan, judged["box"])
        areas = np.array([entry.area for entry in entries], np.float64)  # None becomes NaN
        has_box = ~np.isnan(boxes).any(1)
        valid = np.where(has_box, rules.judge_areas(areas, boxes, block.limits), areas > 0)
        bad = ~np.isnan(areas) & ~valid
        self._note(block, _AREAS, bad, lambda n: str(block.row(n).get("area")))
        seen = block.limits[:, 0] > 0
        drawn = np.where(mask_codes == 0, pixels, boxes[:, 2] * boxes[:, 3])
        for n in np.flatnonzero(seen & ~valid & (mask_codes == 0) & (pixels == 0)):
            drawn[n] = rules.mask_area(segmentation_of(entries[n]), *block.size(int(n)))
        judged["area"] = np.where(valid, areas, np.where(seen, np.nan_to_num(drawn), 0))

    def _judge_keypoints(self, block: _AnnotationBlock, seen: np.ndarray) -> None:
        known = block.judged["image"] < len(self._sizes) - 1
        points = [entry.keypoints for entry in block.entries]
        if not self._points:
            has = np.fromiter(map(bool, points), bool, len(points))
            bad = [n for n, odd in block.odd.items() if Flag.BAD_KEYPOINTS in odd.problems]
            has[bad] = True
            self._note(block, _NO_NAMES, has & known, None)
            self._drop_problems(block, Flag.BAD_KEYPOINTS)
            return
        arguments = points, self._points, block.judged["box"], block.limits
        codes, labeled, misplaced = rules.judge_keypoints(*arguments)
        block.judged["labeled"] = np.where(known, labeled, 0)

        def describe(n: int) -> str:
            box = _shown(block.judged["box"][n])
            return f"keypoints {short_repr(block.row(n).get('keypoints'))}, bbox {box}"

        self._note(block, _MISPLACED, misplaced & seen, describe)
        unmeasured = np.array([entry.num_keypoints == 0 for entry in block.entries], bool)
        self._note(block, _NOT_MEASURED, unmeasured & (labeled > 0) & known, None)
        for n in np.flatnonzero(codes):
            odd = block.odd.setdefault(int(n), Odd(block.row(int(n)), block.entries[n]))
            length = len(points[n] or ())
            odd.problems[Flag.BAD_KEYPOINTS] = rules.keypoints_text(codes[n], length, self._points)
            odd.notes.pop("keypoints", None)

    def _drop_problems(self, block: _AnnotationBlock, flag: Flag) -> None:
        for odd in block.odd.values():
            odd.problems.pop(flag, None)
            odd.notes.pop("keypoints", None)

    def _compare(self, block: _AnnotationBlock, has_both: np.ndarray) -> None:
        """Compare the first boxes with the boxes of their masks, and count differences."""
        for n in np.flatnonzero(has_both)[: max(rules.SAMPLE - self._compared, 0)]:
            self._compared += 1
            box, mask = block.judged["box"][n].tolist(), segmentation_of(block.entries[n])
            self._quads += rules.is_quadrilateral(mask)
            extent = rules.mask_extent(mask, *block.size(int(n)))
            if not rules.boxes_match(box, extent):
                self._mismatched += 1
                if not self._first_mismatched:
                    text = f"bbox {_shown(box)}, box of the mask {_shown(extent)}"
                    self._first_mismatched = f"{block.where(int(n))}: {text}"

    def _set_flags(
        self, block: _AnnotationBlock, box_codes: np.ndarray, mask_codes: np.ndarray
    ) -> None:
        judged, entries = block.judged, block.entries
        seen = block.limits[:, 0] > 0
        known = judged["image"] < len(self._sizes) - 1
        categories = judged["category_id"] != _NO_CATEGORY
        judged["category_id"][~categories] = 0
        odd_masks = np.zeros(len(entries), bool)
        odd_masks[[n for n, odd in block.odd.items() if Flag.BAD_MASK in odd.problems]] = True
        for flag, chosen in (
            (Flag.CROWD, np.array([entry.iscrowd for entry in entries], bool)),
            (Flag.IGNORED, np.array([entry.ignore for entry in entries], bool)),
            (Flag.UNKNOWN_IMAGE, ~known),
            (Flag.UNKNOWN_CATEGORY, ~categories),
            (Flag.BAD_BOX, seen & (box_codes > 0)),
            (Flag.NO_MASK, seen & (mask_codes < 0) & ~odd_masks),
            (Flag.BAD_MASK, seen & ((mask_codes > 0) | odd_masks)),
        ):
            judged["flags"] |= np.where(chosen, np.uint16(flag), np.uint16(0))
        for n, odd in block.odd.items():
            for flag in {Flag.BAD_CROWD, Flag.BAD_KEYPOINTS} & odd.problems.keys():
                if flag == Flag.BAD_CROWD or known[n]:
                    judged["flags"][n] |= np.uint16(flag)
        for flag in (Flag.CROWD, Flag.IGNORED):
            if flag not in self.examples and (judged["flags"] & flag).any():
                self.examples[flag] = block.where(int((judged["flags"] & flag > 0).argmax()))

    def _written(
        self, block: _AnnotationBlock, box_codes: np.ndarray, mask_codes: np.ndarray
    ) -> list[Any]:
        """Return the texts to store: as written, or with changes and problems."""
        texts, flags = list(block.texts), block.judged["flags"]
        is_bad = flags >= Flag.UNKNOWN_IMAGE
        for n in sorted({*np.flatnonzero(is_bad).tolist(), *block.odd}):
            row, odd = block.row(n), block.odd.get(n)
            changes = odd.changes if odd else {}
            problems = self._problems(block, n, box_codes[n], mask_codes[n]) if is_bad[n] else {}
            for key, note in odd.notes.items() if odd else ():
                if self._is_used(block, n, key):
                    text = f"{block.where(n)}: {key} {short_repr(row.get(key))}"
                    self.findings.add(*note, text)
            for flag, text in problems.items():
                self.examples.setdefault(flag, f"{block.where(n)}: {text}")
            if changes or problems:
                stored = {**row, **changes}
                if problems:
                    stored[PROBLEM_KEY] = {str(int(flag)): text for flag, text in problems.items()}
                texts[n] = json.dumps(stored).encode()
            elif odd:
                texts[n] = json.dumps(row).encode()
        return texts

    def _is_used(self, block: _AnnotationBlock, n: int, key: str) -> bool:
        """Return True if a field in another notation has a valid value."""
        bad = {
            "image_id": Flag.UNKNOWN_IMAGE, "category_id": Flag.UNKNOWN_CATEGORY,
            "bbox": Flag.BAD_BOX, "segmentation": Flag.BAD_MASK | Flag.NO_MASK,
            "keypoints": Flag.BAD_KEYPOINTS,
        }.get(key, 0)  # fmt: skip
        located = key in ("image_id", "category_id", "area") or block.limits[n, 0] > 0
        if key == "keypoints":
            located = block.judged["image"][n] < len(self._sizes) - 1
        return bool(located and not block.judged["flags"][n] & bad)

    def _problems(
        self, block: _AnnotationBlock, n: int, box_code: int, mask_code: int
    ) -> dict[int, str]:
        """Return what is wrong with an annotation, by flag, in the order of the checks."""
        row, odd, (height, width) = block.row(n), block.odd.get(n), block.size(n)
        entry, flags = block.entries[n], int(block.judged["flags"][n])
        texts: dict[Flag, str] = {**odd.problems} if odd else {}
        if flags & Flag.UNKNOWN_IMAGE:
            image_id = short_repr(row.get("image_id"))
            texts[Flag.UNKNOWN_IMAGE] = f"image_id {image_id} is not in 'images'"
        if flags & Flag.UNKNOWN_CATEGORY:
            texts[Flag.UNKNOWN_CATEGORY] = self._unknown_category(row)
        if flags & Flag.BAD_BOX and box_code != rules.NO_BOX:
            box: Any = odd.changes.get("bbox", row["bbox"]) if odd else row["bbox"]
            texts[Flag.BAD_BOX] = rules.box_text(box_code, box, height, width)
        if flags & Flag.BAD_MASK and mask_code > 0:
            mask, written = entry.segmentation, row.get("segmentation")
            texts[Flag.BAD_MASK] = (
                odd.parts[0] if odd and 0 in odd.parts and mask_code != rules.OUTSIDE
                else rules.mask_text(mask_code, mask, written, height, width)
            )  # fmt: skip
        if flags & Flag.NO_MASK:
            missing = "missing" if row.get("segmentation") is None else "empty"
            needed = "but masks need one (MODEL.MASK_ON False: boxes only)"
            texts[Flag.NO_MASK] = f"segmentation is {missing}, {needed}"
        order = [Flag.UNKNOWN_IMAGE, Flag.BAD_CROWD, Flag.UNKNOWN_CATEGORY, *Flag]
        return {
            flag: texts[flag] for flag in dict.fromkeys(order) if flag in texts and flags & flag
        }

    def _unknown_category(self, row: Row) -> str:
        written = row.get("category_id")
        if written is None:
            name = row.get("category_name", row.get("category"))
            named = f" (it has the name {short_repr(name)} instead)" if name else ""
            return f"category_id is missing: write the id of its category in 'categories'{named}"
        first, last = min(self._known), max(self._known)
        hint = ". Were they counted from 0?" if written == 0 and first == 1 else ""
        hint = ". Were they counted from 1?" if written == last + 1 and first == 0 else hint
        return (
            f"category_id {short_repr(written)} is not in 'categories', whose ids are {first} to "
            f"{last}{hint}"
        )

    def finish(self) -> None:
        """Raise DataError if most boxes are outside their images, or all look like corners.

        Report a finding if most boxes differ from their masks, or all masks have four corners.
        """
        if self._quads == self._compared >= rules.MIN_BOXES:
            effect = "To train on boxes only, set MODEL.MASK_ON False."
            self.findings.add(QUADS, effect, entry="mask", count=self._quads)
        if self._mismatched >= rules.MIN_BOXES and self._mismatched > self._compared / 2:
            self.findings.add(*_DIFFERENT, self._first_mismatched, count=self._mismatched)
        misplaced, boxes = self._misplaced, self._boxes
        corners = self._like_corners == boxes >= rules.MIN_BOXES and misplaced
        if corners or (misplaced >= rules.MIN_BOXES and misplaced > boxes / 2):
            raise DataError(
                f"{self._file}: {misplaced} of {boxes} boxes are outside of their images or exceed "
                f"them, for example {self._first_misplaced}. If these are corners [x1, y1, x2, y2]"
                ", "
                "convert them to [x, y, width, height]; if they belong to images of another size, "
                "scale them"
            )


def _shown(box: Iterable[float]) -> list[float]:
    """Return a box for a message, with integers where its numbers are."""
    return [int(x) if x == int(x) else float(x) for x in box]


class _Known(dict[Any, int]):
    """Remembers what `read` returns for written ids, which must be hashable to be looked up."""

    def __init__(self, read: Callable[[Any], int]) -> None:
        super().__init__()
        self.read = read

    def __missing__(self, written: Any) -> int:
        self[written] = found = self.read(written)
        return found


def _or_none(category_id: int | None) -> int:
    return _NO_CATEGORY if category_id is None else category_id


def segmentation_of(entry: Entry) -> Segmentation:
    """Return the mask of an annotation in COCO's form."""
    mask = entry.segmentation
    if isinstance(mask, Rle):
        return {"size": [*mask.size], "counts": mask.counts}
    return mask or []


def annotation_name(row: Row, position: int) -> str:
    """Return the name of an annotation in messages, by its ids as written."""
    name = short_repr(row["id"]) if "id" in row else f"at position {position}"
    return f"annotation {name} (image {short_repr(row.get('image_id'))})"
