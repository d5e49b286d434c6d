"""Read COCO annotation and results files into arrays, without an object for each entry."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from detlite import ops
from detlite.data.errors import DataError
from detlite.data.file_type import explain_not_json
from detlite.structures.masks.rle import EncodedMasks

# The bits of `Columns.fields`.
_FIELDS = (
    "image_id", "category_id", "id", "iscrowd", "num_keypoints", "score", "area", "bbox",
    "keypoints", "polygons", "rle", "text", "mask_score",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Columns:
    """The fields of N entries. Those that an entry lacks are 0 and have the length 0."""

    fields: np.ndarray  # int64 [N], see `has`
    integers: np.ndarray  # int64 [N, 5]: image_id, category_id, id, iscrowd, num_keypoints
    numbers: np.ndarray  # float64 [N, 7]: score, area, bbox, mask_score
    sizes: np.ndarray  # int64 [N, 2], (height, width) of the RLE
    text: np.ndarray  # uint8 [V], the concatenated COCO strings of the RLEs
    text_lengths: np.ndarray  # int64 [N]
    corners: np.ndarray  # float64 [W], the concatenated numbers of the polygons
    polygon_lengths: np.ndarray  # int64 [Q], the numbers of each polygon
    polygons: np.ndarray  # int64 [N], the polygons of each entry
    keypoints: np.ndarray  # float64 [U], concatenated
    keypoint_lengths: np.ndarray  # int64 [N], the numbers of each entry

    def has(self, field: str) -> np.ndarray:
        """Return bool [N]: the entries that have a field.

        It is the name of a field, "polygons" or "rle" for the kind of segmentation, or
        "text" for an RLE that is compressed in the file.
        """
        return self.fields >> _FIELDS.index(field) & 1 > 0

    @property
    def masks(self) -> EncodedMasks:
        return EncodedMasks(self.text, self.text_lengths, self.sizes)


def read_bytes(file: Path) -> np.ndarray:
    """Return the content of a file, uint8. DataError if it cannot be read."""
    try:
        return np.fromfile(file, np.uint8)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error})") from error


def parse_columns(text: np.ndarray) -> tuple[Columns, bytes] | None:
    """Parse a list of entries, or an object whose "annotations" are the entries.

    Returns the columns, and the JSON text with an empty list in place of the entries; None if the
    kernel is not available, or if the text is not UTF-8 or not of COCO's form.
    """
    tensors = ops.read_annotations(torch.from_numpy(text))
    if not tensors or tensors[0][0] < 0:
        return None
    if (text >= 0x80).any():  # the kernel skips other names and texts unread
        try:
            text.tobytes().decode()
        except UnicodeDecodeError:
            return None
    span, *columns = (tensor.numpy() for tensor in tensors)
    rest = text[: span[0]].tobytes() + b"[]" + text[span[1] :].tobytes()
    return Columns(*columns), rest


def parse_json(text: np.ndarray | bytes, file: Path) -> Any:
    """Parse JSON. DataError if it is invalid."""
    try:
        return json.loads(bytes(text))
    except (ValueError, RecursionError) as error:
        hint = explain_not_json(file, error) if isinstance(error, ValueError) else ""
        raise DataError(f"{file}: cannot be read ({error}){hint}") from error
