"""Read annotations block by block: convert other notations, and judge all of them by `rules`.

Letters in shapes: N annotations of a block.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from detlite.data.findings import Findings
from detlite.files.errors import DataError, short_repr
from detlite.structures.masks.formats import Segmentation, encode_bitmap, to_bitmap

from . import rules
from .blocks import PROBLEM_KEY, AnnotationBlock, BlockReader, segmentation_of
from .heads import Row
from .notation import ROTATED, Entry, Note, Odd, Rle
from .problems import is_used, problems_of, set_flags
from .selection import Flag

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


class Judge:
    """Reads annotations, collects findings, and counts boxes that are not in their images.

    Args:
        file: the name of the annotation file in messages.
        reader: reads the annotations.
        categories: what annotations refer to.
        keypoint_count: number of keypoints of an object.
        findings: collects what was read in another notation, and where.

    Attributes:
        examples: the first annotation with each flag, and what is wrong with it.
    """

    def __init__(
        self,
        file: object,
        reader: BlockReader,
        categories: Sequence[Row],
        keypoint_count: int,
        findings: Findings,
    ) -> None:
        self._file, self._reader, self.findings = file, reader, findings
        self.examples: dict[int, str] = {}
        self._categories, self._points = categories, keypoint_count
        self._boxes = self._like_corners = self._misplaced = 0
        self._first_misplaced = self._first_mismatched = ""
        self._compared = self._mismatched = self._quads = 0

    def read(self, texts: Sequence[Any], first: int) -> tuple[list[Any], np.ndarray]:
        """Read the JSON texts of annotations from position `first` of the file.

        Returns:
            The texts to store, which have COCO's notation, and JUDGED [N].
        """
        block = self._reader.read(texts, first)
        entries, judged, seen = block.entries, block.judged, block.is_seen
        boxes = np.array([entry.bbox for entry in entries], np.float64).reshape(-1, 4)
        self._like_corners += int((rules.look_like_corners(boxes, block.limits) & seen).sum())
        self._boxes += int(seen.sum())
        box_codes, boxes, far = rules.judge_boxes(boxes, block.limits)
        mask_codes, block.pixels, parts = rules.judge_masks(entries, block.limits)
        block.box_codes = np.where(seen, box_codes, -1)
        block.mask_codes = np.where(seen, mask_codes, -1)
        boxes[block.box_codes != 0] = np.nan
        judged["box"] = boxes
        self._note_misplaced(block, far & seen)
        for n in np.flatnonzero(parts & seen):
            rings = entries[n].segmentation
            assert isinstance(rings, list)
            valid = rules.judge_polygons(rings, np.tile(block.limits[n], (len(rings), 1)))[0] == 0
            kept = [ring for ring, is_valid in zip(rings, valid, strict=True) if is_valid]
            self._change_mask(block, int(n), kept, PARTS)
        for n in np.flatnonzero((block.box_codes == 0) & (block.mask_codes > 0)):
            self._unswap(block, int(n))
        for n in np.flatnonzero((block.box_codes > 0) & (block.mask_codes == 0)):
            self._box_of_mask(block, int(n))
        tiny = judged["box"][:, 2:].min(1, initial=np.inf) < rules.TINY
        self._note(block, _TINY, tiny & seen, lambda n: f"bbox {_shown(judged['box'][n])}")
        self._judge_areas(block)
        self._judge_keypoints(block)
        self._compare(block)
        set_flags(block)
        for flag in (Flag.CROWD, Flag.IGNORED):
            if flag not in self.examples and (judged["flags"] & flag).any():
                self.examples[flag] = block.where(int((judged["flags"] & flag > 0).argmax()))
        return self._written(block), judged

    def _note(
        self,
        block: AnnotationBlock,
        note: Note,
        chosen: np.ndarray,
        describe: Callable[[int], str] | None,
    ) -> None:
        """Report the chosen annotations, bool [N], with the first one as the example."""
        if len(found := np.flatnonzero(chosen)):
            n = int(found[0])
            text = f"{block.where(n)}: {describe(n)}" if describe else block.where(n)
            self.findings.add(*note, text, count=len(found))

    def _note_misplaced(self, block: AnnotationBlock, far: np.ndarray) -> None:
        """Report and count boxes that are outside of their images or exceed them far."""
        rotated = [n for n, odd in block.odd.items() if odd.notes.get("bbox") == ROTATED]
        clipped = far.copy()
        clipped[rotated] = False

        def written(n: int) -> str:
            return f"bbox {short_repr(block.row(n).get('bbox'))}"

        self._note(block, CLIPPED, clipped, written)
        misplaced = np.flatnonzero(clipped | np.isin(block.box_codes, rules.BOX_OUTSIDE))
        if len(misplaced) and not self._first_misplaced:
            n = int(misplaced[0])
            self._first_misplaced = f"{block.where(n)}: {written(n)}"
        self._misplaced += len(misplaced)

    def _change_mask(self, block: AnnotationBlock, n: int, mask: Segmentation, note: Note) -> None:
        """Use another mask than the annotation has."""
        if n not in block.odd:
            block.odd[n] = Odd(block.row(n), block.entries[n])
        odd = block.odd[n]
        is_rle = isinstance(mask, dict)
        odd.entry.segmentation = Rle(mask["counts"], tuple(mask["size"])) if is_rle else mask  # type: ignore[assignment, call-overload]
        odd.changes["segmentation"], odd.notes["segmentation"] = mask, note

    def _unswap(self, block: AnnotationBlock, n: int) -> None:
        """Read an RLE of size [width, height], with runs along columns or rows as fits the box."""
        mask, (height, width) = block.entries[n].segmentation, block.size(n)
        if not rules.is_swapped(mask, block.mask_codes[n], height, width):
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
            block.mask_codes[n], block.pixels[n] = 0, float(fit[0].sum())

    def _box_of_mask(self, block: AnnotationBlock, n: int) -> None:
        """Use the box of a valid mask for a missing one, or as a region for a wrong one."""
        tight = rules.mask_box(segmentation_of(block.entries[n]), *block.size(n))
        if tight is None:
            return
        block.judged["box"][n] = tight
        *_, w, h = block.entries[n].bbox
        if block.box_codes[n] != rules.NO_BOX and min(w, h) > 0:
            block.judged["flags"][n] |= Flag.REGION
            return
        block.box_codes[n] = 0
        if n in block.odd:
            block.odd[n].problems.pop(Flag.BAD_BOX, None)
        text = f"{block.where(n)}: bbox {short_repr(block.row(n).get('bbox'))}"
        self.findings.add(*_FROM_MASK, text)

    def _judge_areas(self, block: AnnotationBlock) -> None:
        """Set the areas, of masks or boxes if they are not given in pixels."""
        entries, judged, has_mask = block.entries, block.judged, block.mask_codes == 0
        boxes = np.where((judged["flags"] & Flag.REGION > 0)[:, None], np.nan, judged["box"])
        areas = np.array([entry.area for entry in entries], np.float64)  # None becomes NaN
        has_box = ~np.isnan(boxes).any(1)
        valid = np.where(has_box, rules.judge_areas(areas, boxes, block.limits), areas > 0)
        bad = ~np.isnan(areas) & ~valid
        self._note(block, _AREAS, bad, lambda n: str(block.row(n).get("area")))
        drawn = np.where(has_mask, block.pixels, boxes[:, 2] * boxes[:, 3])
        for n in np.flatnonzero(~valid & has_mask & (block.pixels == 0)):
            drawn[n] = rules.mask_area(segmentation_of(entries[n]), *block.size(int(n)))
        judged["area"] = np.where(valid, areas, np.where(block.is_seen, np.nan_to_num(drawn), 0))

    def _judge_keypoints(self, block: AnnotationBlock) -> None:
        known = block.is_known
        points = [entry.keypoints for entry in block.entries]
        if not self._points:
            has = np.fromiter(map(bool, points), bool, len(points))
            bad = [n for n, odd in block.odd.items() if Flag.BAD_KEYPOINTS in odd.problems]
            has[bad] = True
            self._note(block, _NO_NAMES, has & known, None)
            for odd in block.odd.values():
                odd.problems.pop(Flag.BAD_KEYPOINTS, None)
                odd.notes.pop("keypoints", None)
            return
        arguments = points, self._points, block.judged["box"], block.limits
        codes, labeled, misplaced = rules.judge_keypoints(*arguments)
        block.judged["labeled"] = np.where(known, labeled, 0)

        def describe(n: int) -> str:
            box = _shown(block.judged["box"][n])
            return f"keypoints {short_repr(block.row(n).get('keypoints'))}, bbox {box}"

        self._note(block, _MISPLACED, misplaced & block.is_seen, describe)
        unmeasured = np.array([entry.num_keypoints == 0 for entry in block.entries], bool)
        self._note(block, _NOT_MEASURED, unmeasured & (labeled > 0) & known, None)
        for n in np.flatnonzero(codes):
            odd = block.odd.setdefault(int(n), Odd(block.row(int(n)), block.entries[n]))
            length = len(points[n] or ())
            odd.problems[Flag.BAD_KEYPOINTS] = rules.keypoints_text(codes[n], length, self._points)
            odd.notes.pop("keypoints", None)

    def _compare(self, block: AnnotationBlock) -> None:
        """Compare the first boxes with the boxes of their masks, and count differences."""
        has_both = (block.box_codes == 0) & (block.mask_codes == 0)
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

    def _written(self, block: AnnotationBlock) -> list[Any]:
        """Return the texts to store: as written, or with changes and problems."""
        texts, flags = list(block.texts), block.judged["flags"]
        is_bad = flags >= Flag.UNKNOWN_IMAGE
        for n in sorted({*np.flatnonzero(is_bad).tolist(), *block.odd}):
            row, odd = block.row(n), block.odd.get(n)
            changes = odd.changes if odd else {}
            problems = problems_of(block, n, self._categories) if is_bad[n] else {}
            for key, note in odd.notes.items() if odd else ():
                if is_used(block, n, key):
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
                f"them, for example {self._first_misplaced}. If these are corners "
                "[x1, y1, x2, y2], convert them to [x, y, width, height]; if they belong to "
                "images of another size, scale them"
            )


def _shown(box: Iterable[float]) -> list[float]:
    """Return a box for a message, with integers where its numbers are."""
    return [int(x) if x == int(x) else float(x) for x in box]
