"""States of the annotations of an index: what is wrong with them, and which a model can use."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from detlite.data.datasets.coco_values import read_box, read_keypoints, read_segmentation
from detlite.data.errors import short_repr

# Flags of an annotation.
CROWD = 1
IGNORED = 2  # marked with "ignore": 1
REGION = 4  # `region` has the box of the mask, because `bbox` is wrong
UNKNOWN_IMAGE = 8
UNKNOWN_CATEGORY = 16
BAD_BOX = 32
BAD_CROWD = 64
NO_MASK = 128
BAD_MASK = 256
BAD_KEYPOINTS = 512

_BAD = UNKNOWN_IMAGE | UNKNOWN_CATEGORY | BAD_BOX | BAD_CROWD
_REGION = (
    "They become ignored regions: neither they nor what is detected there is trained or measured."
)
# What the flags of unusable annotations mean, and what happens to the annotations.
PROBLEMS = {
    UNKNOWN_IMAGE: ("annotations of unknown images", "They are left out."),
    UNKNOWN_CATEGORY: ("annotations of unknown categories", _REGION),
    BAD_BOX: (
        "boxes that cannot be used",
        "They are ignored regions where a mask tells the place, and background elsewhere.",
    ),
    BAD_CROWD: ("iscrowd that is neither 0 nor 1", _REGION),
    NO_MASK: ("objects without a mask", _REGION),
    BAD_MASK: ("masks that cannot be read", _REGION),
    BAD_KEYPOINTS: ("keypoints that cannot be read", _REGION),
}


@dataclass(frozen=True)
class Selection:
    """Selects the annotations that a model can use, from their states, integers [A].

    Attributes:
        masks, keypoints: every object must have them.
        crowds_as_objects: see DATASETS.CROWDS_AS_OBJECTS.
    """

    masks: bool = False
    keypoints: bool = False
    crowds_as_objects: bool = False

    @property
    def refused(self) -> int:
        heads = (NO_MASK | BAD_MASK) * self.masks | BAD_KEYPOINTS * self.keypoints
        return _BAD | heads

    def crowds(self, states: np.ndarray) -> np.ndarray:
        return states & (0 if self.crowds_as_objects else CROWD) > 0

    def bad(self, states: np.ndarray) -> np.ndarray:
        """Return bool [A]: the annotation is invalid. Crowds and ignored ones need only a box."""
        only_box = self.crowds(states) | (states & IGNORED > 0)
        return (states & _BAD > 0) | (states & self.refused > 0) & ~only_box

    def objects(self, states: np.ndarray) -> np.ndarray:
        """Return bool [A]: the annotation is an object to train on and to measure."""
        return ~(self.bad(states) | self.crowds(states) | (states & IGNORED > 0))

    def usable(self, states: np.ndarray) -> np.ndarray:
        """Return bool [A]: the annotation is an object or a crowd."""
        return self.objects(states) | self.crowds(states) & ~self.bad(states)

    def regions(self, states: np.ndarray) -> np.ndarray:
        """Return bool [A]: the annotation is a region in which detections are ignored."""
        return located(states) & ~self.objects(states)

    def ignored(self, states: np.ndarray) -> np.ndarray:
        """Return bool [A]: the annotation is a region to ignore in training, unlike a crowd."""
        return self.regions(states) & ~self.crowds(states)


def located(states: np.ndarray) -> np.ndarray:
    """Return bool [A]: the place of the annotation is known."""
    return (states & UNKNOWN_IMAGE == 0) & ((states & BAD_BOX == 0) | (states & REGION > 0))


def annotation_name(row: dict[str, Any], position: int) -> str:
    """Return the name of an annotation in messages, by its ids as written."""
    name = short_repr(row["id"]) if "id" in row else f"at position {position}"
    return f"annotation {name} (image {short_repr(row.get('image_id'))})"


def describe(
    row: dict[str, Any],
    flags: int,
    size: tuple[int, int],
    categories: list[dict[str, Any]],
    keypoint_count: int,
) -> str:
    """Return the first problem of an annotation among the flags.

    Args:
        row, flags: the annotation as written.
        size: (height, width) of its image; any if the image is unknown.
        categories: of the annotation file.
        keypoint_count: number of keypoints of an object.
    """
    if flags & UNKNOWN_IMAGE:
        return f"image_id {short_repr(row.get('image_id'))} is not in 'images'"
    if flags & UNKNOWN_CATEGORY:
        category, ids = row.get("category_id"), [one["id"] for one in categories]
        hint = ". Were they counted from 0?" if category == 0 and min(ids) == 1 else ""
        return (
            f"category_id {short_repr(category)} is not in 'categories', whose ids are {min(ids)} "
            f"to {max(ids)}{hint}"
        )
    problem: str | None = None
    if flags & BAD_BOX:
        problem = read_box(row.get("bbox"), *size).problem
    elif flags & BAD_CROWD:
        problem = f"iscrowd is {short_repr(row.get('iscrowd'))}, not 0 or 1"
    elif flags & (NO_MASK | BAD_MASK):
        problem = read_segmentation(row.get("segmentation"), *size).problem
        if flags & NO_MASK:
            problem = f"{problem}, but MODEL.MASK_ON needs one (set it False to train on boxes)"
    elif flags & BAD_KEYPOINTS:
        problem = read_keypoints(row.get("keypoints"), keypoint_count).problem
    return problem or "cannot be used"
