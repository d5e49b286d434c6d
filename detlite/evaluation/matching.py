"""Match detections to ground truth and compute precision and recall, by the rules of pycocotools.

The evaluation of LVIS shares these rules. Shapes: D detections and G objects of a whole dataset, A
area ranges, T IoU thresholds, R recall thresholds, K categories.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from detlite import ops

from .overlaps import Pairing
from .reading.ground_truth import GroundTruthArrays

# Object areas in square pixels, both ends included.
AREA_RANGES = {
    "all": (0.0, 1e10),
    "small": (0.0, 32.0**2),
    "medium": (32.0**2, 96.0**2),
    "large": (96.0**2, 1e10),
}
IOU_THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALL_THRESHOLDS = np.linspace(0.0, 1.0, 101)

_NAMED_IOUS = (0.5, 0.75)  # always measured: AP50, AP75, the best score threshold, error types
_ALL = slice(None)
FALSE_POSITIVE, TRUE_POSITIVE, IGNORED = 0, 1, 2  # outcomes of `ops.match_detections`


@dataclass(frozen=True)
class Measures:
    """What is measured."""

    areas: dict[str, tuple[float, float]]  # A ranges of object areas in square pixels
    limits: Sequence[int]  # detections per image and category at which recall is measured
    max_dets: int  # the limit for precision, one of `limits`
    averaged: tuple[float, ...] = tuple(IOU_THRESHOLDS.tolist())  # IoUs of AP and AR

    @cached_property
    def ious(self) -> np.ndarray:
        """The T IoU thresholds, increasing: the averaged ones, 0.5 and 0.75."""
        others = [iou for iou in _NAMED_IOUS if not np.isclose(self.averaged, iou).any()]
        return np.array(sorted([*self.averaged, *others]))

    def at(self, iou: float | None) -> Any:
        """Return the index of an IoU threshold; None: the indices of the averaged ones."""
        if iou is not None:
            return int(np.abs(self.ious - iou).argmin())
        return _ALL if len(self.averaged) == len(self.ious) else np.isin(self.ious, self.averaged)

    def area(self, name: str) -> int:
        """Return the index of an area range."""
        return [*self.areas].index(name)


def area_ranges(limits: Sequence[float] = ()) -> dict[str, tuple[float, float]]:
    """Return the area ranges "all", "small", "medium" and "large", by default COCO's.

    `limits` are the areas in square pixels at which medium and large objects begin.
    """
    if not limits:
        return dict(AREA_RANGES)
    (medium, large), (low, high) = limits, AREA_RANGES["all"]
    return {"all": (low, high), "small": (low, medium), "medium": (medium, large),
            "large": (large, high)}  # fmt: skip


@dataclass(frozen=True, eq=False)
class MatchedDetections:
    """The outcome of every detection."""

    pairing: Pairing
    truth: GroundTruthArrays
    outcomes: np.ndarray  # uint8 [A, T, D], one of FALSE_POSITIVE, TRUE_POSITIVE and IGNORED
    ignored: np.ndarray  # bool [A, G], objects that may be missed
    measures: Measures

    @property
    def outcomes_at_50(self) -> np.ndarray:
        """The outcomes uint8 [D] at IoU 0.5 among objects of any area."""
        return self.outcomes[self.measures.area("all"), self.measures.at(0.5)]

    def of_category(self, index: int) -> tuple[np.ndarray, slice]:
        """Return the detections int64 [D_k] of a category, by decreasing `ranking`, and its
        objects."""
        detections, objects = (
            slice(*np.searchsorted(side.categories, [index, index + 1]))
            for side in (self.pairing, self.truth)
        )
        order = np.argsort(-self.pairing.ranking[detections], kind="stable")
        return order + detections.start, objects


@dataclass(frozen=True, eq=False)
class PrecisionRecall:
    """Precision and recall tables, -1 where there are no objects; see `MatchedDetections`."""

    precision: np.ndarray  # float64 [T, R, K, A], interpolated at RECALL_THRESHOLDS
    recall: np.ndarray  # float64 [T, K, A, M] at the M `limits`
    measures: Measures

    def ap(
        self, iou: float | None = None, area: str = "all", categories: Any = _ALL
    ) -> float | None:
        """Return the mean precision over categories, at an IoU or over the averaged ones.

        None if there are no objects.
        """
        ious = self.precision[self.measures.at(iou)]
        return _mean(ious[..., categories, self.measures.area(area)])

    def precision_curve(
        self, iou: float | None = None, categories: Any = _ALL
    ) -> np.ndarray | None:
        """Return precision float64 [R] at RECALL_THRESHOLDS, averaged as in `ap`."""
        table = np.moveaxis(self.precision, 1, 0)[:, self.measures.at(iou)][..., categories, :]
        table = table[..., self.measures.area("all")].reshape(len(RECALL_THRESHOLDS), -1)
        known = table[:, table[0] > -1]
        return known.mean(axis=1) if known.size else None

    def ar(
        self, iou: float | None = None, area: str = "all", limit: int | None = None
    ) -> float | None:
        """Return the mean recall of the best `limit` (default: `max_dets`) detections."""
        measures = self.measures
        m = measures.limits.index(measures.max_dets if limit is None else limit)
        return _mean(self.recall[measures.at(iou), :, measures.area(area), m])

    def summarize(
        self, names: Sequence[str], more: dict[str, float | None], suffix: str = ""
    ) -> dict[str, Any]:
        """Return AP and AR of each area, `more` metrics, and AP per category.

        `suffix` is appended to the names of AR.
        """
        areas = [area for area in self.measures.areas if area != "all"]
        return {
            **{"AP": self.ap(), "AP50": self.ap(0.5), "AP75": self.ap(0.75)},
            **{f"AP{area[0]}": self.ap(area=area) for area in areas},
            **more,
            **{f"AR{area[0]}{suffix}": self.ar(area=area) for area in areas},
            "per_category": {name: self.ap(categories=k) for k, name in enumerate(names)},
        }


def _mean(table: np.ndarray) -> float | None:
    known = table[table > -1]
    return float(known.mean()) if known.size else None


def match(
    pairing: Pairing,
    truth: GroundTruthArrays,
    overlaps: np.ndarray,
    sizes: np.ndarray,
    measures: Measures,
    ignore_unmatched: np.ndarray | None = None,
) -> MatchedDetections:
    """Match detections to objects, with the overlaps float64 [P] of their pairs.

    `sizes`, float64 [D], are the areas of the detections in square pixels. Detections in
    `ignore_unmatched`, bool [D], do not count as false positives.
    """
    low, high = np.array([*measures.areas.values()]).T[:, :, None]
    ignored = truth.ignored | (truth.areas < low) | (truth.areas > high)  # [A, G]
    outside = (sizes < low) | (sizes > high)  # [A, D]
    if ignore_unmatched is not None:
        outside |= ignore_unmatched
    arrays = (overlaps, pairing.groups, truth.crowd, ignored, outside, measures.ious)
    outcomes = ops.match_detections(*map(torch.from_numpy, arrays)).numpy()
    return MatchedDetections(pairing, truth, outcomes, ignored, measures)


def accumulate(matched: MatchedDetections) -> PrecisionRecall:
    """Compute precision and recall from the outcomes, in order of decreasing `Pairing.ranking`."""
    truth, pairing, count = matched.truth, matched.pairing, len(matched.truth.category_ids)
    arrays = (
        matched.outcomes,
        pairing.ranking,
        pairing.ranks,
        np.searchsorted(pairing.categories, np.arange(count), side="right"),
        np.stack([np.bincount(truth.categories[~row], minlength=count) for row in matched.ignored]),
        np.array(matched.measures.limits, np.int64),
        RECALL_THRESHOLDS,
    )
    arguments: list[Any] = [*map(torch.from_numpy, arrays), matched.measures.max_dets]
    precision, recall = (table.numpy() for table in ops.precision_recall(*arguments))
    return PrecisionRecall(precision, recall, matched.measures)


@dataclass(frozen=True)
class ScoreThreshold:
    """A score threshold, with the precision and recall of the detections that reach it."""

    score: float
    precision: float
    recall: float

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0


def best_threshold(matched: MatchedDetections) -> ScoreThreshold | None:
    """Return the threshold with the highest F1 at IoU 0.5; None without true positives."""
    outcomes = matched.outcomes_at_50
    positives = int((~matched.ignored[matched.measures.area("all")]).sum())
    scores = matched.pairing.scores[outcomes != IGNORED]
    # Thresholds between the scores of true positives only add false positives.
    correct = np.sort(matched.pairing.scores[outcomes == TRUE_POSITIVE])
    if not len(correct) or not positives:
        return None
    thresholds, first = np.unique(correct, return_index=True)
    hits = (len(correct) - first)[::-1]
    counts = np.bincount(np.searchsorted(thresholds, scores, "right"), minlength=len(hits) + 1)
    detections = counts[:0:-1].cumsum()  # that reach each threshold, the highest one first
    best = int((2 * hits / (detections + positives)).argmax())
    true_positives = int(hits[best])
    return ScoreThreshold(
        float(thresholds[::-1][best]),
        true_positives / int(detections[best]),
        true_positives / positives,
    )
