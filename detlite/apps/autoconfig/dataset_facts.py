"""What rules are given, and what they give."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from detlite.apps.doctor import Resources, counted

from .statistics import SetStatistics


@dataclass(frozen=True)
class Facts:
    """What rules decide by.

    Attributes:
        train, measured: the set that is trained on, and that measured on, if any.
        machine: where.
        small: whether the model is that of `_base_/small_fpn.yaml`.
        shrink: by how much pictures are smaller than objects would have it.
        minutes: that training may take, and a word on what was timed for it; None: as it needs.
        step_seconds: of a training step, where that was measured.
        processes: that train together.
    """

    train: SetStatistics
    measured: SetStatistics | None
    machine: Resources
    small: bool = False
    shrink: float = 1.0
    minutes: tuple[float, str] | None = None
    step_seconds: float | None = None
    processes: int = 1

    @property
    def base(self) -> str:
        """The config that the choices go over."""
        return "_base_/small_fpn.yaml" if self.small else "_base_/from_scratch_fpn.yaml"

    @property
    def sets(self) -> list[SetStatistics]:
        """The one or two sets."""
        return [self.train, *([self.measured] if self.measured else [])]

    @property
    def place(self) -> str:
        """Where models run: "gpu" or "cpu"."""
        return "gpu" if self.machine.gpu else "cpu"

    @property
    def summary(self) -> str:
        """What the set and the machine are, in a sentence."""
        found, machine = self.train, self.machine
        low, high = found.sizes.min(axis=0).astype(int), found.sizes.max(axis=0).astype(int)
        device = machine.gpu or counted(machine.cores, "core")
        return (
            f"{len(found.sizes)} pictures of {low[1]}x{low[0]} to {high[1]}x{high[0]} pixels to "
            f"train on, with {len(found.boxes)} objects (sides of {found.sides.min():.0f} to "
            f"{found.sides.max():.0f} pixels), on {device} with {machine.memory / 1e9:.0f} GB"
        )

    def all_have(self, what: str) -> bool:
        """Whether `with_masks` or `with_keypoints` is true of every object."""
        return all(getattr(one, what) == len(one.boxes) for one in self.sets)


@dataclass(frozen=True)
class Choice:
    """A config key, its value and why; a key of the same reason as the one before has none."""

    key: str
    value: Any
    reason: str = ""


Chosen = Mapping[str, Any]
Rule = Callable[[Facts, Chosen], Iterator[Choice]]
NOTHING_GIVEN: Chosen = MappingProxyType({})


def gives_body(chosen: Chosen) -> bool:
    """Whether the body, or the weights to start from, are decided already."""
    return "MODEL.BACKBONE.CONV_BODY" in chosen or "MODEL.WEIGHT" in chosen


def is_retinanet(chosen: Chosen) -> bool:
    """Whether the detector is decided to be a RetinaNet, which has no RPN and no RoIs."""
    return bool(chosen.get("MODEL.META_ARCHITECTURE") == "RetinaNet")


def scales(found: SetStatistics, short: float, longest: float) -> np.ndarray:
    """By how much each picture is resized, float64 [I]."""
    return np.minimum(short / found.sizes.min(axis=1), longest / found.sizes.max(axis=1))
