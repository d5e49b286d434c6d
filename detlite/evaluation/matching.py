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

from detlite import ops

from .ground_truth import Truth
from .overlaps import Pairing

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
WRONG, RIGHT, IGNORED = 0, 1, 2  # what `ops.match_detections` returns


@dataclass(frozen=True, eq=False)
class Matched:
    """Which of D detections found one of G objects, by COCO's rules.

    Attributes:
        pairing, truth: the detections and the objects.
        outcomes: uint8 [A, T, D] of WRONG, RIGHT and IGNORED, for A areas and T of THRESHOLDS.
        ignored: bool [A, G], the objects that need not be found.
        areas: A of AREAS.
        limits: numbers of detections of an image and category, the best, whose recall is counted.
        most: how many of them precision is counted of.
    """

    pairing: Pairing
    truth: Truth
    outcomes: np.ndarray
    ignored: np.ndarray
    areas: Sequence[str]
    limits: Sequence[int]
    most: int

    def of_category(self, place: int) -> tuple[np.ndarray, slice]:
        """Of the category at a place in `truth.category_ids`, the detections int64 [D_k], best
        first, and where the objects are."""
        own, objects = (
            slice(*np.searchsorted(side.categories, [place, place + 1]))
            for side in (self.pairing, self.truth)
        )
        order = np.argsort(-self.pairing.scores[own], kind="stable")
        return order + own.start, objects


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

    def curve(self, at: float | None = None, categories: Any = _ALL) -> np.ndarray | None:
        """Precision float64 [R] at RECALLS, the mean over thresholds and categories as in `ap`."""
        table = np.moveaxis(self.precision, 1, 0)[:, _threshold(at), categories]
        table = table[..., self.areas.index("all")].reshape(len(RECALLS), -1)
        known = table[:, table[0] > -1]
        return known.mean(axis=1) if known.size else None

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


def match(
    pairing: Pairing,
    truth: Truth,
    overlaps: np.ndarray,
    sizes: np.ndarray,
    areas: Sequence[str],
    limits: Sequence[int],
    most: int,
    uncounted: np.ndarray | None = None,
) -> Matched:
    """Gives the detections of `pairing` to objects.

    Args:
        overlaps: float64 [P] of the pairs.
        sizes: float64 [D], of the detections in square pixels.
        areas, limits, most: see `Matched`.
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
    return Matched(pairing, truth, outcomes, ignored, areas, limits, most)


def score(matched: Matched) -> Scored:
    """Counts what is right and wrong, from the best detections on."""
    truth, outcomes = matched.truth, matched.outcomes
    areas, limits, most = matched.areas, matched.limits, matched.most
    categories = len(truth.category_ids)
    found = Scored(
        precision=np.full((len(THRESHOLDS), len(RECALLS), categories, len(areas)), -1.0),
        recall=np.full((len(THRESHOLDS), categories, len(areas), len(limits)), -1.0),
        areas=areas, limits=limits, most=most,
    )  # fmt: skip
    for k in range(categories):
        best_first, objects = matched.of_category(k)
        ranks = matched.pairing.ranks[best_first]
        positives = (~matched.ignored[:, objects]).sum(axis=1)
        for a in np.flatnonzero(positives):
            outcome = outcomes[a][:, best_first]  # [T, D]
            right = outcome == RIGHT
            for m, limit in enumerate(limits):
                found.recall[:, k, a, m] = right[:, ranks < limit].sum(axis=1) / positives[a]
            right, outcome = right[:, ranks < most], outcome[:, ranks < most]
            counted = (outcome != IGNORED).cumsum(axis=1)
            for t, hits in enumerate(right):
                found.precision[t, :, k, a] = interpolated_precision(counted[t, hits], positives[a])
    return found


def interpolated_precision(counted: np.ndarray, positives: int) -> np.ndarray:
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
