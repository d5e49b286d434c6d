"""Say what is wrong with the annotations of a block, as flags and as texts."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from detlite.files.errors import short_repr

from . import rules
from .blocks import NO_CATEGORY, AnnotationBlock
from .heads import Row
from .selection import Flag


def set_flags(block: AnnotationBlock) -> None:
    """Set the flags of annotations whose values were judged, see `Flag`."""
    judged, entries, seen, known = block.judged, block.entries, block.is_seen, block.is_known
    categories = judged["category_id"] != NO_CATEGORY
    judged["category_id"][~categories] = 0
    odd_masks = np.zeros(len(entries), bool)
    odd_masks[[n for n, odd in block.odd.items() if Flag.BAD_MASK in odd.problems]] = True
    for flag, chosen in (
        (Flag.CROWD, np.array([entry.iscrowd for entry in entries], bool)),
        (Flag.IGNORED, np.array([entry.ignore for entry in entries], bool)),
        (Flag.UNKNOWN_IMAGE, ~known),
        (Flag.UNKNOWN_CATEGORY, ~categories),
        (Flag.BAD_BOX, seen & (block.box_codes > 0)),
        (Flag.NO_MASK, seen & (block.mask_codes < 0) & ~odd_masks),
        (Flag.BAD_MASK, seen & ((block.mask_codes > 0) | odd_masks)),
    ):
        judged["flags"] |= np.where(chosen, np.uint16(flag), np.uint16(0))
    for n, odd in block.odd.items():
        for flag in {Flag.BAD_CROWD, Flag.BAD_KEYPOINTS} & odd.problems.keys():
            if flag == Flag.BAD_CROWD or known[n]:
                judged["flags"][n] |= np.uint16(flag)


def is_used(block: AnnotationBlock, n: int, key: str) -> bool:
    """Return True if a field in another notation has a valid value."""
    bad = {
        "image_id": Flag.UNKNOWN_IMAGE, "category_id": Flag.UNKNOWN_CATEGORY,
        "bbox": Flag.BAD_BOX, "segmentation": Flag.BAD_MASK | Flag.NO_MASK,
        "keypoints": Flag.BAD_KEYPOINTS,
    }.get(key, 0)  # fmt: skip
    located = key in ("image_id", "category_id", "area") or block.is_seen[n]
    if key == "keypoints":
        located = block.is_known[n]
    return bool(located and not block.judged["flags"][n] & bad)


def problems_of(block: AnnotationBlock, n: int, categories: Sequence[Row]) -> dict[int, str]:
    """Return what is wrong with an annotation, by flag, in the order of the checks."""
    row, odd, (height, width) = block.row(n), block.odd.get(n), block.size(n)
    entry, flags = block.entries[n], int(block.judged["flags"][n])
    box_code, mask_code = int(block.box_codes[n]), int(block.mask_codes[n])
    texts: dict[Flag, str] = {**odd.problems} if odd else {}
    if flags & Flag.UNKNOWN_IMAGE:
        image_id = short_repr(row.get("image_id"))
        texts[Flag.UNKNOWN_IMAGE] = f"image_id {image_id} is not in 'images'"
    if flags & Flag.UNKNOWN_CATEGORY:
        texts[Flag.UNKNOWN_CATEGORY] = _unknown_category(row, categories)
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
    return {flag: texts[flag] for flag in dict.fromkeys(order) if flag in texts and flags & flag}


def _unknown_category(row: Row, categories: Sequence[Row]) -> str:
    written = row.get("category_id")
    if written is None:
        name = row.get("category_name", row.get("category"))
        named = f" (it has the name {short_repr(name)} instead)" if name else ""
        return f"category_id is missing: write the id of its category in 'categories'{named}"
    ids = {row["id"] for row in categories}
    first, last = min(ids), max(ids)
    hint = ". Were they counted from 0?" if written == 0 and first == 1 else ""
    hint = ". Were they counted from 1?" if written == last + 1 and first == 0 else hint
    return (
        f"category_id {short_repr(written)} is not in 'categories', whose ids are {first} to "
        f"{last}{hint}"
    )
