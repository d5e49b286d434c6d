"""Precision and recall of detections beside the objects that they overlap.

The rules are those of pycocotools' cocoeval.py, which LVIS's evaluation shares; here they work on
arrays of a whole data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .. import ops
from .overlaps import Pairing
from .truth import Truth

# In pixels, both ends included.
AREAS = {
    "all": (0.0, 1e10),
    "small": (0.0, 32.0**2),
    "medium": (32.0**2, 96.0**2),
    "large": (96.0**2, 1e10),
}
THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)

_ALL = slice(None)
_RIGHT, _IGNORED = 1, 2  # what `ops.match_detections` returns


@dataclass(frozen=True, eq=False)
class Scored:
    """Precision and recall; -1 where there is nothing to find.

    Attributes:
        precision: float64 [T, R, K, A], of T THRESHOLDS, at R RECALLS, of K categories, of objects
            of A areas; of the best `most` detections of each image and category.
        recall: float64 [T, K, A, M], of the best detections of M numbers.
        areas: A of AREAS.
        limits: the M numbers.
        most: see `precision`.
    """

    precision: np.ndarray
    recall: np.ndarray
    areas: Sequence[str]
    limits: Sequence[int]
    most: int

    def ap(
        self, at: float | None = None, area: str = "all", categories: Any = _ALL
    ) -> float | None:
        """The mean precision, at one of THRESHOLDS or all; None where there is nothing to find.

        Args:
            categories: the places of some, of K.
        """
        return _mean(self.precision[_threshold(at), :, categories, self.areas.index(area)])

    def ar(
        self, at: float | None = None, area: str = "all", limit: int | None = None
    ) -> float | None:
        """The mean recall of the best `limit` detections, or the best `most`."""
        m = self.limits.index(self.most if limit is None else limit)
        return _mean(self.recall[_threshold(at), :, self.areas.index(area), m])


def _threshold(at: float | None) -> Any:
    return _ALL if at is None else int(np.abs(THRESHOLDS - at).argmin())


def _mean(table: np.ndarray) -> float | None:
    known = table[table > -1]
    return float(known.mean()) if known.size else None


def score(
    pairing: Pairing,
    truth: Truth,
    overlaps: np.ndarray,
    sizes: np.ndarray,
    areas: Sequence[str],
    limits: Sequence[int],
    most: int,
    uncounted: np.ndarray | None = None,
) -> Scored:
    """Matches the detections of `pairing` with objects, and counts.

    Args:
        overlaps: float64 [P] of the pairs.
        sizes: float64 [D], of the detections in square pixels.
        areas, limits, most: see `Scored`.
        uncounted: bool [D], detections that do not count where they find nothing.
    """
    low, high = np.array([AREAS[name] for name in areas]).T[:, :, None]
    ignored = truth.ignored | (truth.areas < low) | (truth.areas > high)  # [A, G]
    outside = (sizes < low) | (sizes > high)  # [A, D]
    if uncounted is not None:
        outside |= uncounted
    outcomes = ops.match_detections(
        *map(
            torch.from_numpy, (overlaps, pairing.groups, truth.crowd, ignored, outside, THRESHOLDS)
        )
    ).numpy()
    categories = len(truth.category_ids)
    found = Scored(
        precision=np.full((len(THRESHOLDS), len(RECALLS), categories, len(areas)), -1.0),
        recall=np.full((len(THRESHOLDS), categories, len(areas), len(limits)), -1.0),
        areas=areas, limits=limits, most=most,
    )  # fmt: skip
    for k in range(categories):
        own, objects = (
            slice(*np.searchsorted(side.categories, [k, k + 1])) for side in (pairing, truth)
        )
        order = np.argsort(-pairing.scores[own], kind="stable")
        ranks = pairing.ranks[own][order]
        positives = (~ignored[:, objects]).sum(axis=1)
        for a in np.flatnonzero(positives):
            outcome = outcomes[a, :, own][:, order]  # [T, D]
            right = outcome == _RIGHT
            for m, limit in enumerate(limits):
                found.recall[:, k, a, m] = right[:, ranks < limit].sum(axis=1) / positives[a]
            right, outcome = right[:, ranks < most], outcome[:, ranks < most]
            counted = (outcome != _IGNORED).cumsum(axis=1)
            for t, hits in enumerate(right):
                found.precision[t, :, k, a] = _precision(counted[t, hits], positives[a])
    return found


def _precision(counted: np.ndarray, positives: int) -> np.ndarray:
    """The best precision at each of RECALLS or a higher one.

    Only right detections are looked at, [H], since precision is highest there.

    Args:
        counted: how many detections count up to each.
        positives: how many there are to find.
    """
    hits = np.arange(1, len(counted) + 1)
    best = np.maximum.accumulate((hits / (counted + np.spacing(1)))[::-1])[::-1]
    # Nothing reaches a recall that is higher than the last.
    return np.append(best, 0.0)[np.searchsorted(hits / positives, RECALLS)]
