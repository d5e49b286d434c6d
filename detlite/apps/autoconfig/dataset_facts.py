"""Inputs and outputs of the rules."""

from collections.abc import Iterator, Mapping
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
        minutes: time limit of the training, and a sentence about the timing; None: no limit.
        step_seconds: duration of a training step, if it was timed.
        processes: number of processes that train together.
        trained: train the model of a checkpoint, whose keys of MODEL and INPUT are decided.
    """

    train: DatasetStatistics
    val: DatasetStatistics | None
    machine: Resources
    single_images: bool = False
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
        area, side = values.get("INPUT.MIN_AREA", 0), values.get("INPUT.TILE", 0)
        train, *val = (part.select(part.areas >= area).tiled(side) for part in self.sets)
        return replace(self, train=train, val=val[0] if val else None)

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
        return self.head("MASK")[0]

    @property
    def keypoints(self) -> bool:
        """True if one in ten objects of the categories with keypoints has them."""
        return self.head("KEYPOINT")[0]

    def head(self, name: str) -> tuple[bool, str]:
        """Return if there are enough objects for the head, "MASK" or "KEYPOINT", and the reason."""
        if name == "MASK":
            counts = [(part.with_masks, len(part.boxes)) for part in self.sets]
            usable, factor = all(count for count, _ in counts), 2
            text = "have a mask; half of all objects, and some of both sets, need one"
        else:
            counts = [(part.with_keypoints, part.keypoint_objects) for part in self.sets]
            usable = bool(counts[0][0]) and all(part.keypoints for part in self.sets)
            factor, text = 10, "have labeled keypoints; one in ten of all objects needs them"
        labeled, objects = np.sum(counts, axis=0)
        fewest = min(counts, key=lambda pair: pair[0] / max(pair[1], 1))
        images = "training" if fewest == counts[0] else "evaluation"
        text = f"{fewest[0]} of {fewest[1]} objects in the {images} images {text}"
        return usable and bool(factor * labeled >= objects), text


@dataclass(frozen=True)
class Choice:
    """A config key, its value and the reason; "": the reason of the previous key."""

    key: str
    value: Any
    reason: str = ""


Values = Mapping[str, Any]  # of config keys
Rules = Iterator[tuple[str, Any, str]]  # keys, values and reasons; "": as for the previous key


def resize_factors(statistics: DatasetStatistics, short: float, longest: float) -> np.ndarray:
    """Return the factor by which each image is resized, float64 [I]."""
    sizes = statistics.sizes
    return np.minimum(short / sizes.min(axis=1), longest / sizes.max(axis=1))
