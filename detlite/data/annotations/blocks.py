"""Read blocks of annotations: their texts, and the images and categories that they refer to.

Letters in shapes: N annotations of a block.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from detlite.files.errors import DataError, short_repr
from detlite.structures.masks.formats import Segmentation

from .heads import ImageTable, Row
from .ids import Ids
from .notation import Entry, Odd, Rle, is_other_notation, normalize

PROBLEM_KEY = "_problems"  # of a stored annotation: what is wrong with it, by flag
# What is stored of an annotation. The box is NaN if it cannot be used, and the area 0.
JUDGED = np.dtype(
    [("id", "q"), ("flags", "u2"), ("image", "q"), ("category_id", "q"), ("labeled", "i2"),
     ("box", "d", 4), ("area", "d")]
)  # fmt: skip


NO_CATEGORY = -(1 << 63)  # the id of an unknown category, in blocks
_decode = msgspec.json.Decoder(Entry).decode


@dataclass
class AnnotationBlock:
    """The annotations of a block, and what is known of them.

    Attributes:
        texts: the JSON texts in the file.
        first: the position of the first one in the file.
        entries: the annotations in COCO's types.
        odd: those in another notation, or that are changed.
        limits: (width, height) of their images, float64 [N, 2]; 0 if unknown.
        is_known: the image is known, bool [N].
        judged: JUDGED [N].
        box_codes, mask_codes: the rules that they break, see `rules`; -1: they are not judged.
        pixels: the pixels of masks of run lengths, float64 [N].
    """

    texts: Sequence[Any]
    first: int
    entries: list[Entry]
    odd: dict[int, Odd]
    limits: np.ndarray
    is_known: np.ndarray
    judged: np.ndarray
    box_codes: np.ndarray = field(init=False)
    mask_codes: np.ndarray = field(init=False)
    pixels: np.ndarray = field(init=False)

    @property
    def is_seen(self) -> np.ndarray:
        """True for annotations in images of known size, bool [N]."""
        return self.limits[:, 0] > 0

    def row(self, n: int) -> Row:
        """Return an annotation as written."""
        return self.odd[n].row if n in self.odd else json.loads(bytes(self.texts[n]))

    def where(self, n: int) -> str:
        return annotation_name(self.row(n), self.first + n)

    def size(self, n: int) -> tuple[int, int]:
        """Return the (height, width) of the image of an annotation."""
        width, height = self.limits[n].tolist()
        return int(height), int(width)


class BlockReader:
    """Reads the JSON texts of annotations.

    Args:
        file: the name of the annotation file in messages.
        images, category_ids: what annotations refer to.
        sizeless: images without a size are as large as the boxes need.

    Attributes:
        unnamed: the first annotation whose id is not an integer.
    """

    def __init__(
        self, file: object, images: ImageTable, category_ids: Ids, sizeless: bool = False
    ) -> None:
        self._file, self._sizeless, self.unnamed = file, sizeless, ""
        numbers, unknown = images.numbers, len(images.ids)
        self._image_of = _Known(lambda value: numbers.get(images.known.number(value), unknown))  # type: ignore[arg-type]
        self._category_of = _Known(lambda value: _or_none(category_ids.number(value)))
        self._sizes = np.array([*images.sizes, (0, 0)], np.float64)[:, ::-1]

    def read(self, texts: Sequence[Any], first: int) -> AnnotationBlock:
        """Read texts from position `first` of the file. Raises DataError."""
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
        limits, is_known = self._sizes[judged["image"]], judged["image"] < len(self._sizes) - 1
        if self._sizeless:
            boxes = np.array([entry.bbox for entry in entries], np.float64).reshape(-1, 4)
            extent = np.ceil(np.nan_to_num(boxes[:, :2] + boxes[:, 2:], nan=1.0))
            free = (limits[:, :1] == 0) & is_known[:, None]
            limits = np.where(free, extent.clip(1, 1 << 30), limits)
        return AnnotationBlock(texts, first, entries, odd, limits, is_known, judged)


class _Known(dict[Any, int]):
    """Remembers what `read` returns for written ids, which must be hashable to be looked up."""

    def __init__(self, read: Callable[[Any], int]) -> None:
        super().__init__()
        self.read = read

    def __missing__(self, written: Any) -> int:
        self[written] = found = self.read(written)
        return found


def _or_none(category_id: int | None) -> int:
    return NO_CATEGORY if category_id is None else category_id


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
