"""Flags of annotations: their defects, and which of them a model can use."""

from dataclasses import dataclass
from enum import IntFlag

import numpy as np


class Flag(IntFlag):
    """Kind of an annotation, and its defects."""

    CROWD = 1
    IGNORED = 2  # marked with "ignore": 1
    REGION = 4  # `bbox` is wrong, so the box of the mask is used instead
    UNKNOWN_IMAGE = 8
    UNKNOWN_CATEGORY = 16
    BAD_BOX = 32
    BAD_CROWD = 64
    NO_MASK = 128
    BAD_MASK = 256
    BAD_KEYPOINTS = 512
    SMALL = 1024  # fewer pixels than INPUT.MIN_AREA; not stored


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
    """Selects the annotations that a model can use, from their flags, integers [A].

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

    def crowds(self, flags: np.ndarray) -> np.ndarray:
        return flags & (0 if self.crowds_as_objects else Flag.CROWD) > 0

    def bad(self, flags: np.ndarray) -> np.ndarray:
        """Return bool [A], True for invalid annotations. Crowds and regions need only a box."""
        only_box = self.crowds(flags) | (flags & _IGNORED > 0)
        return (flags & _BAD > 0) | (flags & self.refused > 0) & ~only_box

    def objects(self, flags: np.ndarray) -> np.ndarray:
        """Return bool [A], True for objects to train on and to measure."""
        return ~(self.bad(flags) | self.crowds(flags) | (flags & _IGNORED > 0))

    def usable(self, flags: np.ndarray) -> np.ndarray:
        """Return bool [A], True for objects and crowds."""
        return self.objects(flags) | self.crowds(flags) & ~self.bad(flags)

    def regions(self, flags: np.ndarray) -> np.ndarray:
        """Return bool [A], True for regions in which detections are ignored."""
        return located(flags) & ~self.objects(flags)

    def ignored(self, flags: np.ndarray) -> np.ndarray:
        """Return bool [A], True for regions to ignore in training; crowds are not."""
        return self.regions(flags) & ~self.crowds(flags)


def located(flags: np.ndarray) -> np.ndarray:
    """Return bool [A], True if the image and the box of the annotation are known."""
    return (flags & Flag.UNKNOWN_IMAGE == 0) & (
        (flags & Flag.BAD_BOX == 0) | (flags & Flag.REGION > 0)
    )
