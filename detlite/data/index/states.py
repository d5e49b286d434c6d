"""States of annotations: their defects, and which of them a model can use."""

import posixpath
from dataclasses import dataclass
from enum import IntFlag
from typing import Any

import numpy as np

from detlite.files.errors import short_repr


class Flag(IntFlag):
    """Kind of an annotation, and its defects."""

    CROWD = 1
    IGNORED = 2  # marked with "ignore": 1
    REGION = 4  # REGION_KEY has the box of the mask, because `bbox` is wrong
    UNKNOWN_IMAGE = 8
    UNKNOWN_CATEGORY = 16
    BAD_BOX = 32
    BAD_CROWD = 64
    NO_MASK = 128
    BAD_MASK = 256
    BAD_KEYPOINTS = 512
    SMALL = 1024  # fewer pixels than INPUT.MIN_AREA; not stored in the index


SAMPLE = 2000  # boxes that are compared with their masks
QUADS = f"masks with four corners, as boxes have, of the first {SAMPLE} annotations"
REGION_KEY = "_region"  # of an annotation in an index: its box, see `Flag.REGION`
WRITTEN_ID = "_written_id"  # of an image or category: its id in the file if that is no integer
PROBLEM_KEY = "_problems"  # of an annotation in an index: what is wrong with it, by flag
_BAD = Flag.UNKNOWN_IMAGE | Flag.UNKNOWN_CATEGORY | Flag.BAD_BOX | Flag.BAD_CROWD
_IGNORED = Flag.IGNORED | Flag.SMALL
_REGION = "They become ignored regions: neither they nor detections there are trained or measured."
# What the flags of unusable annotations mean, and what happens to the annotations.
PROBLEMS = {
    Flag.UNKNOWN_IMAGE: ("annotations of unknown images", "They are skipped."),
    Flag.UNKNOWN_CATEGORY: ("annotations of unknown categories", _REGION),
    Flag.BAD_BOX: (
        "boxes that cannot be used",
        "They are ignored regions if they have a valid mask, otherwise background.",
    ),
    Flag.BAD_CROWD: ("iscrowd that is neither 0 nor 1", _REGION),
    Flag.NO_MASK: ("objects without a mask", _REGION),
    Flag.BAD_MASK: ("masks that cannot be read", _REGION),
    Flag.BAD_KEYPOINTS: ("keypoints that cannot be read", _REGION),
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
        heads = (Flag.NO_MASK | Flag.BAD_MASK) * self.masks | Flag.BAD_KEYPOINTS * self.keypoints
        return _BAD | heads

    def crowds(self, states: np.ndarray) -> np.ndarray:
        return states & (0 if self.crowds_as_objects else Flag.CROWD) > 0

    def bad(self, states: np.ndarray) -> np.ndarray:
        """Return bool [A], True for invalid annotations. Crowds and regions need only a box."""
        only_box = self.crowds(states) | (states & _IGNORED > 0)
        return (states & _BAD > 0) | (states & self.refused > 0) & ~only_box

    def objects(self, states: np.ndarray) -> np.ndarray:
        """Return bool [A], True for objects to train on and to measure."""
        return ~(self.bad(states) | self.crowds(states) | (states & _IGNORED > 0))

    def usable(self, states: np.ndarray) -> np.ndarray:
        """Return bool [A], True for objects and crowds."""
        return self.objects(states) | self.crowds(states) & ~self.bad(states)

    def regions(self, states: np.ndarray) -> np.ndarray:
        """Return bool [A], True for regions in which detections are ignored."""
        return located(states) & ~self.objects(states)

    def ignored(self, states: np.ndarray) -> np.ndarray:
        """Return bool [A], True for regions to ignore in training; crowds are not."""
        return self.regions(states) & ~self.crowds(states)


def located(states: np.ndarray) -> np.ndarray:
    """Return bool [A], True if the image and the box of the annotation are known."""
    return (states & Flag.UNKNOWN_IMAGE == 0) & (
        (states & Flag.BAD_BOX == 0) | (states & Flag.REGION > 0)
    )


def annotation_name(row: dict[str, Any], position: int) -> str:
    """Return the name of an annotation in messages, by its ids as written."""
    name = short_repr(row["id"]) if "id" in row else f"at position {position}"
    return f"annotation {name} (image {short_repr(row.get('image_id'))})"


def set_file_name(image: dict[str, Any], by_url: bool) -> dict[str, Any]:
    """Set the `file_name` of an image entry from its `coco_url`, in place, if it has none.

    With `by_url`, `coco_url` takes precedence: LVIS v0.5 has file names without the folder, and
    some that COCO no longer uses. Backslashes of Windows become slashes, and paths are normalized.
    """
    # LVIS v1 has only URLs, which end in train2017/<file> or val2017/<file>.
    if (by_url or "file_name" not in image) and isinstance(image.get("coco_url"), str):
        image["file_name"] = "/".join(image["coco_url"].split("/")[-2:])
    name = image.get("file_name")
    if name and isinstance(name, str):
        name = name.replace("\\", "/")
        image["file_name"] = name if "://" in name else posixpath.normpath(name)
    return image
