"""Bootstrap over images: confidence intervals of metrics and of differences between two models.

Each of B samples draws as many images as the dataset has, with replacement (Efron, "Bootstrap
methods", 1979). Detections are matched once and weighted by how often their image was drawn. If two
models are compared on the same samples, the interval of their difference is narrower than their
separate intervals suggest.
"""

from dataclasses import dataclass

import numpy as np
import torch
from pycocotools.coco import COCO
from torch import Tensor
from torch.nn import functional as F

from detlite.evaluation.coco import MatchedResults, positives
from detlite.evaluation.engine import IGNORED, RECALL_THRESHOLDS, TRUE_POSITIVE, read_outcomes
from detlite.evaluation.results import Results
from detlite.evaluation.truth import numbers_of

Interval = tuple[float, float]

_CHUNK = 1 << 19  # entries of a table that fits into the cache


class MatchedDetections:
    """The outcomes of D detections, by decreasing score, and the G objects.

    Attributes:
        shape: the numbers of images and categories.
        images, categories: int64 [D], numbers by increasing id.
        scores: float64 [D].
        outcomes: uint8 [A, T, D] of `read_outcomes`.
        object_images, object_categories: int64 [G].
        counted: bool [A, G], objects to detect.
    """

    def __init__(self, found: MatchedResults, truth: COCO, results: Results, kind: str) -> None:
        """Read the outcomes of `match_coco` with these arguments."""
        self.measures = measures = found.tables.measures
        images, categories = numbers_of(truth.imgs), numbers_of(truth.cats)
        self.shape = len(images), len(categories)
        detection_images = np.searchsorted([*images], results.image_ids)
        # Equal scores are ordered by image, as in COCO's evaluation.
        scores = results.scores.astype(np.float64)
        order = np.lexsort((detection_images, -scores))
        self.scores, self.images = scores[order], detection_images[order]
        self.categories = np.searchsorted([*categories], results.category_ids[order])
        self.outcomes = read_outcomes(found.evaluator, measures, len(results))[..., order]
        rows = truth.dataset["annotations"]
        self.object_images = np.array([images[row["image_id"]] for row in rows], np.int64)
        numbers = [categories[row["category_id"]] for row in rows]
        self.object_categories = np.array(numbers, np.int64)
        areas = np.array([row["area"] for row in rows], np.float64)
        low, high = np.array([*measures.areas.values()]).T[:, :, None]
        self.counted = positives(truth, kind) & (areas >= low) & (areas <= high)


class BootstrapMetrics:
    """Metrics of B samples; NaN where a sample has no objects.

    Attributes:
        ap: float32 [B, T, K, A] for T IoU thresholds, K categories and A areas.
        recall: float32 [B, T, K] for objects of any area.
        measures: the IoU thresholds and the areas.
    """

    def __init__(self, matched: MatchedDetections, samples: np.ndarray) -> None:
        """Compute the metrics of the samples of `sample_images` for the images of the truth."""
        self.measures = measures = matched.measures
        shape = (len(samples), len(measures.ious), matched.shape[1])
        self.ap = np.full((*shape, len(measures.areas)), np.nan, np.float32)
        self.recall = np.full(shape, np.nan, np.float32)
        by_image = np.ascontiguousarray(samples.T)  # [I, B]
        for k in range(shape[2]):
            detections = np.flatnonzero(matched.categories == k)
            objects = np.flatnonzero(matched.object_categories == k)
            # Only the images of the category count.
            own = np.concatenate([matched.images[detections], matched.object_images[objects]])
            used, own = np.unique(own, return_inverse=True)
            images, object_images = np.split(own, [len(detections)])
            drawn = torch.from_numpy(by_image[used].astype(np.float32))
            for a, area in enumerate(measures.areas):
                counted = object_images[matched.counted[a][objects]]
                if not len(counted):
                    continue
                numbers = np.bincount(counted, minlength=len(used)).astype(np.float32)
                present = (torch.from_numpy(numbers) @ drawn).numpy().astype(np.int64)  # [B]
                outcomes = matched.outcomes[a][:, detections]  # [T, D]
                hits = np.flatnonzero((outcomes == TRUE_POSITIVE).any(axis=0))
                step = max(1, _CHUNK // max(1, len(hits)))
                for first in range(0, len(samples), step):
                    chunk = slice(first, first + step)
                    ap, recall = _average_precision(
                        drawn[:, chunk].contiguous(), images, outcomes, hits, present[chunk]
                    )
                    self.ap[chunk, :, k, a] = ap
                    if area == "all":
                        self.recall[chunk, :, k] = recall

    def metrics(self) -> dict[str, np.ndarray]:
        """Return AP, AP50, AP75, AR and APs, APm, APl for the measured areas, float [B] each."""
        at, names = self.measures.at, [*self.measures.areas]
        ap = self.ap[..., names.index("all")]
        tables = {"AP": ap[:, at(None)], "AP50": ap[:, [at(0.5)]], "AP75": ap[:, [at(0.75)]]}
        tables |= {
            f"AP{area[0]}": self.ap[..., a][:, at(None)]
            for a, area in enumerate(names)
            if area != "all"
        }
        tables["AR"] = self.recall[:, at(None)]
        return {name: _nan_mean(table) for name, table in tables.items()}

    def by_category(self) -> np.ndarray:
        """Return AP by category, float [B, K]."""
        return self.ap[..., self.measures.area("all")][:, self.measures.at(None)].mean(axis=1)


def _nan_mean(table: np.ndarray) -> np.ndarray:
    """Return the mean over all but the first axis, ignoring NaN; NaN if all values are NaN."""
    axes = tuple(range(1, table.ndim))
    count = (~np.isnan(table)).sum(axis=axes)
    with np.errstate(invalid="ignore"):
        return np.nansum(table, axis=axes, dtype=np.float64) / count


def sample_images(images: int, samples: int, seed: int) -> np.ndarray:
    """Return how often each of B samples contains each of I images, uint8 [B, I]; deterministic."""
    probabilities = np.full(images, 1 / images)
    return np.random.default_rng(seed).multinomial(images, probabilities, samples).astype(np.uint8)


def interval(value: float | None, sampled: np.ndarray) -> Interval | None:
    """Return the 95 % confidence interval of a metric between 0 and 1, given its samples [B].

    None if the metric is None or equal in all samples, as with a single object.
    """
    bounds = _basic_interval(value, sampled)
    if bounds is None or bounds[0] == bounds[1]:
        return None
    return max(bounds[0], 0.0), min(bounds[1], 1.0)


def _basic_interval(value: float | None, sampled: np.ndarray) -> Interval | None:
    """Return the basic bootstrap interval (Davison and Hinkley, "Bootstrap methods", 1997, 5.2).

    AP is higher for few images than for many, and samples contain fewer distinct images than the
    dataset. Percentiles of the samples would therefore contain the true value too rarely.
    """
    known = sampled[~np.isnan(sampled)]
    if value is None or not known.size:
        return None
    low, high = np.quantile(known, [0.025, 0.975])
    return float(2 * value - high), float(2 * value - low)


def _average_precision(
    drawn: Tensor, images: np.ndarray, outcomes: np.ndarray, hits: np.ndarray, positives: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return AP and recall float [B, T] of one category.

    AP is a sum over true positives: the highest precision at or after each of them, times the
    number of RECALL_THRESHOLDS that it is the first to reach.

    Args:
        drawn: float32 [I, B], how often each sample contains each image.
        images: int64 [D], the images of the detections, by decreasing score.
        outcomes: uint8 [T, D].
        hits: int64 [H], the detections that are true positives at a threshold.
        positives: int64 [B], number of objects.
    """
    drawn_hits = drawn.T.numpy()[:, images[hits]].astype(np.uint8)
    table = np.zeros((2, drawn.shape[1], len(outcomes)))
    previous = counts = np.empty(0)
    for t, outcome in enumerate(outcomes):
        correct = outcome[hits] == TRUE_POSITIVE
        if not correct.any():
            continue
        counted = outcome != IGNORED
        if not np.array_equal(counted, previous):  # mostly equal for all thresholds
            previous = counted
            counts = _count_drawn(drawn, images[counted], counted.cumsum()[hits])
        true_positives = drawn_hits[:, correct].cumsum(axis=1, dtype=np.int32)
        precision = true_positives / np.maximum(counts[:, correct], 1)
        best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
        reached = true_positives / np.maximum(positives, 1)[:, None]
        numbers = (100 * reached + 1e-9).astype(np.int64)
        numbers += RECALL_THRESHOLDS[numbers] <= reached  # the same comparison as in `accumulate`
        # The first true positive that was drawn reaches the lowest threshold, recall 0.
        numbers[true_positives == 0] = 0
        widths = np.diff(numbers, axis=1, prepend=0)
        table[0, :, t] = (best * widths).sum(axis=1) / len(RECALL_THRESHOLDS)
        table[1, :, t] = reached[:, -1]
    table[:, positives == 0] = np.nan
    return table[0], table[1]


def _count_drawn(drawn: Tensor, images: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Count how often each sample contains the first ends[h] of `images`, int64 [B, H].

    Sums of rows are much faster than cumulative sums of all detections.
    """
    starts = torch.from_numpy(np.concatenate([[0], ends[:-1]]))
    sums = F.embedding_bag(torch.from_numpy(images[: ends[-1]]), drawn, starts, mode="sum")
    return sums.cumsum(0, dtype=torch.int64).T.numpy()


@dataclass(frozen=True)
class MetricDifference:
    """The metric of a second model minus the metric of a first one, with its 95 % interval."""

    value: float
    interval: Interval

    @property
    def is_noise(self) -> bool:
        """True if the interval contains 0, or is empty because all samples are equal."""
        low, high = self.interval
        return low <= 0 <= high or low == high


def compare(
    first: float | None, second: float | None, first_sampled: np.ndarray, second_sampled: np.ndarray
) -> MetricDifference | None:
    """Compare a metric of two models, given its values [B] on the same samples; None if unknown."""
    if first is None or second is None:
        return None
    bounds = _basic_interval(second - first, second_sampled - first_sampled)
    return None if bounds is None else MetricDifference(second - first, bounds)
