"""The index of an annotation file: its images and annotations, checked, at known places of a file.

It holds each image and annotation as it was written, and beside them, as arrays, what is needed of
all of them at once. So a data set of any size takes little memory and a short time to open.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from detlite.data.errors import DataError

from .annotation_checks import annotation_problem
from .file_format import IndexFile

# What is known of an annotation, as bits.
CROWD = 1
UNSOUND = 2  # whatever is trained on
NO_MASK = 4  # no sound segmentation
NO_KEYPOINTS = 8
_TWICE = 16  # shifted by which of the last two count: an earlier sound one has the same id


def unsound_bits(masks: bool, keypoints: bool) -> int:
    """The bits of which an annotation must have none where such are needed."""
    return UNSOUND | NO_MASK * masks | NO_KEYPOINTS * keypoints | _twice(masks, keypoints)


def mark_repeated(states: np.ndarray, ids: np.ndarray) -> None:
    """Sets the bits for annotations whose id an earlier sound one has.

    Args:
        states: uint8 [A] of such bits, in the file's order; changed in place.
        ids: int64 [A], of unsound ones any.
    """
    for masks in (False, True):
        for keypoints in (False, True):
            own = np.flatnonzero(states & unsound_bits(masks, keypoints) == 0)
            repeated = np.ones(len(own), bool)
            repeated[np.unique(ids[own], return_index=True)[1]] = False
            states[own[repeated]] |= _twice(masks, keypoints)


def _twice(masks: bool, keypoints: bool) -> int:
    return _TWICE << (masks + 2 * keypoints)


class AnnotationIndex:
    """An annotation file's content. Images have numbers, from 0 in the file's order.

    A pickle of it carries the index's path alone.

    Attributes:
        file: where it is kept.
        content: the annotation file's members, without its images and annotations.
        folders: those of the pictures, relative to that of the data set.
        image_ids: int64 [I].
        sizes: int64 [I, 2], (height, width).
    """

    def __init__(self, file: IndexFile) -> None:
        self.file = file
        self.content: dict[str, Any] = file.table["content"]
        self.folders: list[str] = file.table["folders"]

    def __reduce__(self) -> tuple[Any, ...]:
        return AnnotationIndex, (self.file,)

    @property
    def image_ids(self) -> np.ndarray:
        return self.file.array("image_ids")

    @property
    def sizes(self) -> np.ndarray:
        return self.file.array("sizes")

    def image(self, number: int) -> dict[str, Any]:
        """The entry of an image; it has a `file_name`."""
        (row,) = self._rows(self.file.array("images", number, number + 1))
        return name_picture(row, self.file.table["by_url"])

    def annotations(self, number: int, without: int) -> list[dict[str, Any]]:
        """Those of an image, in the file's order, that have none of the bits `without`."""
        first, last = self.file.array("first", number, number + 2).tolist()
        states = self.file.array("states", first, last)
        return self._rows(self.file.array("annotations", first, last)[states & without == 0])

    def category_ids(self, number: int, without: int) -> np.ndarray:
        """Those of `annotations`, int64 [N]."""
        first, last = self.file.array("first", number, number + 2).tolist()
        states = self.file.array("states", first, last)
        return self.file.array("category_ids", first, last)[states & without == 0]

    def counts(self, without: int, labelled_keypoints: bool = False) -> np.ndarray:
        """How many annotations of each image have none of the bits `without`, int64 [I].

        With `labelled_keypoints` these are counted instead of the annotations.
        """
        counted = (self.file.array("states") & without == 0).astype(np.int64)
        if labelled_keypoints:
            counted *= self.file.array("labelled")
        first = self.file.array("first")
        return np.diff(np.concatenate([[0], counted.cumsum()])[first])

    def problems(self, masks: bool, keypoint_count: int, most: int) -> tuple[list[str], int]:
        """What is wrong with the first annotations that are unsound, and how many there are."""
        bad = np.flatnonzero(self.file.array("states") & unsound_bits(masks, keypoint_count > 0))
        if not len(bad):
            return [], 0
        spans = self.file.array("annotations")
        spans = spans[bad[np.argsort(spans[bad, 0])[:most]]]
        sizes = dict(zip(self.image_ids.tolist(), map(tuple, self.sizes.tolist()), strict=True))
        known = {category["id"] for category in self.content["categories"]}
        written = []
        for row, position in zip(self._rows(spans), self._positions(spans), strict=True):
            problem = annotation_problem(row, sizes, known, masks, keypoint_count)
            where = f"annotation {row.get('id', f'at position {position}')}"
            written.append(
                f"{where} (image {row.get('image_id')}): {problem or 'the id occurs twice'}"
            )
        return written, len(bad)

    def _positions(self, spans: np.ndarray) -> list[int]:
        """Which annotations of the file these are, from 0."""
        starts = np.sort(self.file.array("annotations")[:, 0])
        return np.searchsorted(starts, spans[:, 0]).tolist()

    def _rows(self, spans: np.ndarray) -> list[dict[str, Any]]:
        try:
            return [json.loads(text) for text in self.file.texts(spans)]
        except json.JSONDecodeError as error:
            raise DataError(
                f"{self.file.path}: the index is damaged; delete this file, and it is made anew"
            ) from error


def name_picture(image: dict[str, Any], by_url: bool) -> dict[str, Any]:
    """Gives an image entry a `file_name`, in place, where its address alone tells it.

    With `by_url` the address is always taken where there is one.
    """
    # LVIS v1 has the address alone, which ends in train2017/<picture> or val2017/<picture>.
    if (by_url or "file_name" not in image) and isinstance(image.get("coco_url"), str):
        image["file_name"] = "/".join(image["coco_url"].split("/")[-2:])
    return image
