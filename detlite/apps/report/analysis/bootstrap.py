"""How far a metric depends on which pictures were drawn: the bootstrap over images.

B times as many images as there are are drawn with replacement, and measured (Efron, Bootstrap
methods, 1979). An image that is drawn twice counts twice: nothing is matched again, detections are
only weighted. With the same weights two models are measured on the same draws, which tells more of
their difference than two intervals do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detlite.evaluation.matching import IGNORED, RECALLS, RIGHT, THRESHOLDS, Matched

_CHUNK = 1 << 19  # entries of a table, which fits into a cache


@dataclass(frozen=True, eq=False)
class Resampled:
    """Metrics of B draws; NaN where a draw has nothing to find.

    Attributes:
        ap: float32 [B, T, K, A], of T THRESHOLDS, K categories and A areas.
        recall: float32 [B, T, K], of all areas.
        areas: A of AREAS.
    """

    ap: np.ndarray
    recall: np.ndarray
    areas: tuple[str, ...]

    def metrics(self) -> dict[str, np.ndarray]:
        """Float [B] of each of AP, AP50, AP75, APs, APm, APl and AR, as far as there are such."""
        everything = self.ap[..., self.areas.index("all")]
        tables = {"AP": everything, "AP50": everything[:, :1], "AP75": everything[:, 5:6]}
        tables |= {
            f"AP{area[0]}": self.ap[..., a] for a, area in enumerate(self.areas) if area != "all"
        }
        tables["AR"] = self.recall
        return {name: _known_mean(table) for name, table in tables.items()}

    def by_category(self) -> np.ndarray:
        """AP, float [B, K]."""
        return self.ap[..., self.areas.index("all")].mean(axis=1)


def _known_mean(table: np.ndarray) -> np.ndarray:
    """The mean over all but the first axis of what is not NaN; NaN where nothing is."""
    known = ~np.isnan(table)
    axes = tuple(range(1, table.ndim))
    count = known.sum(axis=axes)
    total = np.where(known, table, 0.0).sum(axis=axes, dtype=np.float64)
    return np.divide(total, count, out=np.full(len(table), np.nan), where=count > 0)


def draw_images(images: int, draws: int, seed: int) -> np.ndarray:
    """How often each draw holds each image: uint8 [B, I], the same for the same arguments."""
    shares = np.full(images, 1 / images)
    return np.random.default_rng(seed).multinomial(images, shares, draws).astype(np.uint8)


def interval(
    value: float | None, draws: np.ndarray, level: float = 0.95
) -> tuple[float, float] | None:
    """Where a metric of 0 to 1 lies with confidence `level`.

    None where it is not measured, or the same in all draws: such as that of a single object, of
    which they tell nothing.

    Args:
        value: of the images that there are.
        draws: float [B], of the draws.
    """
    found = _basic(value, draws, level)
    if found is None or found[0] == found[1]:
        return None
    return max(found[0], 0.0), min(found[1], 1.0)


def _basic(value: float | None, draws: np.ndarray, level: float) -> tuple[float, float] | None:
    """The basic bootstrap interval (Davison and Hinkley, Bootstrap methods, 1997, 5.2).

    Draws lie about the value as the value lies about the truth. That matters with AP, which is
    higher in few images than in many: draws, of fewer different images, are higher still, and the
    interval between their own quantiles holds the truth too rarely.
    """
    known = draws[~np.isnan(draws)]
    if value is None or not known.size:
        return None
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(2 * value - high), float(2 * value - low)


def resample(matched: Matched, draws: np.ndarray) -> Resampled:
    """Measures the draws, as `score` measures the images that there are.

    Args:
        draws: uint8 [B, I] for the I of `matched.truth.image_ids`, see `draw_images`.
    """
    truth, pairing = matched.truth, matched.pairing
    shape = (len(draws), len(THRESHOLDS), len(truth.category_ids))
    ap = np.full((*shape, len(matched.areas)), np.nan, np.float32)
    recall = np.full(shape, np.nan, np.float32)
    whole = matched.areas.index("all")
    for k in range(shape[2]):
        best_first, objects = matched.of_category(k)
        best_first = best_first[pairing.ranks[best_first] < matched.most]
        images = pairing.keys[best_first] % len(truth.image_ids)
        step = max(1, _CHUNK // max(1, len(images)))
        for a in range(len(matched.areas)):
            counted = truth.images[objects][~matched.ignored[a, objects]]
            if not len(counted):
                continue
            positives = draws @ np.bincount(counted, minlength=draws.shape[1])  # [B]
            outcomes = matched.outcomes[a][:, best_first]  # [T, D]
            for first in range(0, len(draws), step):
                part = slice(first, first + step)
                found = _average_precision(draws[part], images, outcomes, positives[part])
                ap[part, :, k, a] = found[0]
                if a == whole:
                    recall[part, :, k] = found[1]
    return Resampled(ap, recall, tuple(matched.areas))


def _average_precision(
    draws: np.ndarray, images: np.ndarray, outcomes: np.ndarray, positives: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """AP and recall float [B, T] of one category.

    The area under the curve is a sum over right detections, [H]: the best precision at each or
    behind it, times how many of RECALLS are reached with it.

    Args:
        draws: uint8 [B, I].
        images: int64 [D], of the detections, best first.
        outcomes: uint8 [T, D].
        positives: int64 [B], how many objects there are to find.
    """
    drawn = draws[:, images]
    table = np.zeros((2, len(draws), len(outcomes)))
    before, counts = np.empty(0, np.int64), drawn
    for t, outcome in enumerate(outcomes):
        counted = np.flatnonzero(outcome != IGNORED)
        if t == 0 or not np.array_equal(counted, before):  # mostly they are
            before, counts = counted, drawn[:, counted].cumsum(axis=1, dtype=np.int32)
        hits = outcome[counted] == RIGHT
        if not hits.any():
            continue
        right = drawn[:, counted[hits]].cumsum(axis=1, dtype=np.int32)  # [B, H]
        precision = right / np.maximum(counts[:, hits], 1)
        best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
        reached = right / np.maximum(positives, 1)[:, None]
        numbers = (100 * reached + 1e-9).astype(np.int64)
        numbers += RECALLS[numbers] <= reached  # how many, by the digits that `score` goes by
        # The lowest of RECALLS is 0, which is reached by the first right one that was drawn.
        numbers[right == 0] = 0
        table[0, :, t] = (best * np.diff(numbers, axis=1, prepend=0)).sum(axis=1) / len(RECALLS)
        table[1, :, t] = reached[:, -1]
    table[:, positives == 0] = np.nan
    return table[0], table[1]


@dataclass(frozen=True)
class Difference:
    """By how much a second model is better than a first one, and where that lies with a confidence
    of 95 %."""

    value: float
    between: tuple[float, float]

    @property
    def is_noise(self) -> bool:
        """Whether it is not known which of the two is better; so if all draws differ alike, as they
        do by a single object."""
        low, high = self.between
        return low <= 0 <= high or low == high


def compare(
    first: float | None, second: float | None, first_draws: np.ndarray, second_draws: np.ndarray
) -> Difference | None:
    """Compares a metric, and its values float [B] for the same draws of the same images.

    Returns:
        None where one of the two is not measured.
    """
    if first is None or second is None:
        return None
    between = _basic(second - first, second_draws - first_draws, 0.95)
    return None if between is None else Difference(second - first, between)
