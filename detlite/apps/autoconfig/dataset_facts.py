"""Inputs and outputs of the rules."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from detlite.apps.doctor.machine import Resources, plural

from .statistics import DatasetStatistics

BASE = "_base_/from_scratch_fpn.yaml"  # the config that the choices extend


@dataclass(frozen=True)
class DatasetFacts:
    """Facts about the data and the machine that the rules use.

    Attributes:
        single_images: train on one image per step, because the time allows few steps.
        shrink: factor of the image size that suits the objects.
        minutes: time limit of the training, and a sentence about the timing; None: no limit.
        step_seconds: duration of a training step, if it was timed.
        processes: number of processes that train together.
        trained: train the model of a checkpoint, whose keys of MODEL and INPUT are decided.
    """

    train: DatasetStatistics
    val: DatasetStatistics | None
    machine: Resources
    single_images: bool = False
    shrink: float = 1.0
    minutes: tuple[float, str] | None = None
    step_seconds: float | None = None
    processes: int = 1
    trained: bool = False

    @property
    def sets(self) -> list[DatasetStatistics]:
        """Statistics of the one or two sets."""
        return [part for part in (self.train, self.val) if part]

    def adapted(self, values: "Values") -> "DatasetFacts":
        """Return the facts about training with INPUT.MIN_AREA and INPUT.TILE of `values`."""
        min_area, side = (values.get(key, 0) for key in ADAPTING_KEYS)

        def adapt(part: DatasetStatistics) -> DatasetStatistics:
            part = part.select(part.areas >= min_area) if min_area else part
            return part.tiled(side) if side else part

        return replace(self, train=adapt(self.train), val=self.val and adapt(self.val))

    @property
    def device(self) -> str:
        """Device of the model: "GPU" or "CPU"."""
        return "GPU" if self.machine.gpu else "CPU"

    @property
    def summary(self) -> str:
        """Description of the training set and the machine."""
        train, machine = self.train, self.machine
        low, high = train.sizes.min(axis=0).astype(int), train.sizes.max(axis=0).astype(int)
        device = machine.gpu or plural(machine.cores, "core")
        return (
            f"{train.images} training images of {low[1]}x{low[0]} to {high[1]}x{high[0]} "
            f"pixels with {len(train.boxes)} objects (sides of {train.sides.min():.0f} to "
            f"{train.sides.max():.0f} pixels), on {device} with {machine.memory / 1e9:.0f} GB"
        )

    @property
    def masks(self) -> bool:
        """True if at least half of the objects have a mask, and some in every set."""
        counts = [part.with_masks for part in self.sets]
        return all(counts) and 2 * sum(counts) >= sum(len(part.boxes) for part in self.sets)

    @property
    def keypoints(self) -> bool:
        """True if one in ten objects of the categories with keypoints has them."""
        labeled = sum(part.with_keypoints for part in self.sets)
        objects = sum(part.keypoint_objects for part in self.sets)
        named = self.train.with_keypoints and all(part.keypoints for part in self.sets)
        return bool(named and 10 * labeled >= objects)


@dataclass(frozen=True)
class Choice:
    """A config key, its value and the reason; "": the reason of the previous key."""

    key: str
    value: Any
    reason: str = ""


Values = Mapping[str, Any]  # of config keys
Reasoned = tuple[Any, str]  # a value and its reason
# Keys that change which objects and images are trained, see `DatasetFacts.adapted`.
ADAPTING_KEYS = ("INPUT.MIN_AREA", "INPUT.TILE")


def resize_factors(statistics: DatasetStatistics, short: float, longest: float) -> np.ndarray:
    """Return the factor by which each image is resized, float64 [I]."""
    sizes = statistics.sizes
    return np.minimum(short / sizes.min(axis=1), longest / sizes.max(axis=1))
