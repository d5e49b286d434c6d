"""COCO average precision and recall of boxes, masks and keypoints.

The values equal pycocotools' values (cocodataset.org/#detection-eval), as fractions.
Letters in shapes: D detections, K categories, A area ranges, T IoU and R recall thresholds.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools.coco import COCO

from detlite.data import CocoDataset
from detlite.data.datasets.ground_truth import read_coco_gt
from detlite.files.errors import DataError

from .engine import (
    AREA_RANGES,
    IOU_THRESHOLDS,
    RECALL_THRESHOLDS,
    Measures,
    count_by_score,
    run_engine,
)
from .metrics import Metrics, iou_problem
from .results import IOU_TYPES, Results
from .results_file import check_results, read_results

_MAX_KEYPOINT_DETS = 20
# Of COCO's 17 keypoints.
_SIGMAS = np.array([26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89]) / 1000
_ALL = slice(None)


def evaluate_coco(
    coco_gt: COCO | CocoDataset | Path | str | dict[str, Any],
    results: Results | Path | str | Sequence[dict[str, Any]],
    iou_types: Sequence[str] = ("bbox", "segm"),
    max_dets: int = 100,
    oks_sigmas: Sequence[float] = (),
    skip_bad: bool = False,
    iou_thresholds: Sequence[float] = (),
) -> Metrics:
    """Evaluate `results` on all images of `coco_gt`.

    Args:
        coco_gt: the ground truth: an annotation file, its content, a `COCO` object with the content
            as `dataset`, or a dataset. `read_coco_gt` describes how it is read.
            docs/targets_and_results.md lists in which cases pycocotools reads it otherwise.
        results: the detections, their results file, or its entries (`read_results`), with the
            fields that `iou_types` need. May be empty.
        iou_types: some of "bbox", "segm" and "keypoints", or one of them.
        max_dets: number of highest-scoring detections per image and category. Keypoints always
            use COCO's 20.
        oks_sigmas: for each keypoint the standard deviation of its annotated position divided by
            the square root of the object's area (cocodataset.org/#keypoints-eval). Empty: COCO's
            values for its 17 keypoints, their mean for other numbers of keypoints.
        skip_bad: ignore unusable annotations of the file instead of raising an error.
        iou_thresholds: increasing IoUs over which AP and AR are averaged. Empty: COCO's, 0.5 to
            0.95 in steps of 0.05. AP50 and AP75 do not depend on them.

    Returns:
        {"bbox": {"AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR<max_dets>", "ARs",
        "ARm", "ARl", "per_category": {name: AP}}, ...} as fractions, None if there are no such
        objects. Keypoints have no small objects, and AR, AR50 and AR75 instead of AR1 and AR10. If
        there are true positives, "best_f1" contains the "score" threshold with the highest F1 at
        IoU 0.5, and its "precision" and "recall".

    Raises:
        DataError: a result or annotation is invalid, or the numbers of keypoints differ.
        ValueError: an argument is invalid.
    """
    iou_types = (iou_types,) if isinstance(iou_types, str) else iou_types
    unknown = [iou_type for iou_type in iou_types if iou_type not in IOU_TYPES]
    if unknown:
        raise ValueError(f"iou_types: unknown {unknown[0]!r}; known: {', '.join(IOU_TYPES)}")
    if max_dets < 1:
        raise ValueError(f"max_dets must be at least 1, got {max_dets}")
    if problem := iou_problem(iou_thresholds):
        raise ValueError(problem)
    truth = read_coco_gt(coco_gt, iou_types, skip_bad)
    results = read_results(results, truth, iou_types, max_dets)
    return measure_coco(truth, results, iou_types, max_dets, oks_sigmas, iou_thresholds)


def measure_coco(
    truth: COCO, results: Results, iou_types: Sequence[str], max_dets: int, *settings: Any
) -> Metrics:
    """Evaluate results on the ground truth from `read_coco_gt`; see `evaluate_coco`."""
    check_results(results, truth, iou_types)
    names, metrics = category_names(truth), {}
    for iou_type in iou_types:
        matched = match_coco(truth, results, iou_type, max_dets, *settings)
        metrics[iou_type] = summarize(matched.tables, names, iou_type)
        if matched.threshold:
            metrics[iou_type]["best_f1"] = asdict(matched.threshold)
    return metrics


@dataclass(frozen=True, eq=False)
class PrecisionRecall:
    """Precision and recall tables of the engine, -1 where there are no objects."""

    precision: np.ndarray  # float64 [T, R, K, A], interpolated at RECALL_THRESHOLDS
    recall: np.ndarray  # float64 [T, K, A, M] at the M `limits`
    measures: Measures

    def ap(
        self, iou: float | None = None, area: str = "all", categories: Any = _ALL
    ) -> float | None:
        """Return the mean precision over categories, at an IoU or over the averaged ones.

        None if there are no objects.
        """
        table = self.precision[..., self.measures.area(area)]
        return _mean(table[self.measures.at(iou)][..., categories])

    def precision_curve(self, iou: float | None = None) -> np.ndarray | None:
        """Return precision float64 [R] at RECALL_THRESHOLDS, averaged as in `ap`."""
        table = np.moveaxis(self.precision, 1, 0)[:, self.measures.at(iou)]
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
        averaged = self.precision[self.measures.at(None), ..., self.measures.area("all")]
        return {
            **{"AP": self.ap(), "AP50": self.ap(0.5), "AP75": self.ap(0.75)},
            **{f"AP{area[0]}": self.ap(area=area) for area in areas},
            **more,
            **{f"AR{area[0]}{suffix}": self.ar(area=area) for area in areas},
            "per_category": {name: _mean(averaged[..., k]) for k, name in enumerate(names)},
        }


def _mean(table: np.ndarray) -> float | None:
    known = table[table > -1]
    return float(known.mean()) if known.size else None


@dataclass(frozen=True)
class ScoreThreshold:
    """A score threshold, with the precision and recall of the detections that reach it."""

    score: float
    precision: float
    recall: float

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall, which the page of a report shows."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0


@dataclass(frozen=True, eq=False)
class MatchedResults:
    """Precision and recall of results, and their best score threshold."""

    tables: PrecisionRecall
    threshold: ScoreThreshold | None  # with the highest F1; None without true positives
    evaluator: Any  # the engine's COCOeval


def match_coco(
    truth: COCO,
    results: Results,
    iou_type: str,
    max_dets: int = 100,
    oks_sigmas: Sequence[float] = (),
    iou_thresholds: Sequence[float] = (),
) -> MatchedResults:
    """Match detections to objects. See `measure_coco` for arguments and errors."""
    measures, sigmas = coco_measures(iou_type, max_dets, iou_thresholds), np.empty(0)
    if iou_type == "keypoints":
        sigmas = check_sigmas(truth, results, oks_sigmas)
    evaluator = run_engine(truth, results, iou_type, measures, sigmas)
    precision = evaluator.eval["precision"][..., measures.limits.index(measures.max_dets)]
    tables = PrecisionRecall(precision, evaluator.eval["recall"], measures)
    thresholds, detections, hits = count_by_score(evaluator, measures, results.scores)
    objects = int(positives(truth, iou_type).sum())
    threshold: ScoreThreshold | None = None
    if hits.any() and objects:
        best = int((2 * hits / (detections + objects)).argmax())
        found = float(hits[best])
        score = float(thresholds[best])
        threshold = ScoreThreshold(score, found / detections[best], found / objects)
    return MatchedResults(tables, threshold, evaluator)


def coco_measures(iou_type: str, max_dets: int, iou_thresholds: Sequence[float] = ()) -> Measures:
    """Return what COCO measures, see `evaluate_coco`."""
    averaged = tuple(iou_thresholds) or tuple(IOU_THRESHOLDS.tolist())
    if iou_type != "keypoints":
        return Measures(AREA_RANGES, sorted({1, 10, max_dets}), max_dets, averaged)
    areas = {name: bounds for name, bounds in AREA_RANGES.items() if name != "small"}
    return Measures(areas, [_MAX_KEYPOINT_DETS], _MAX_KEYPOINT_DETS, averaged)


def positives(truth: COCO, iou_type: str) -> np.ndarray:
    """Return bool [N], True for annotations to detect: no crowds, and some labeled keypoints."""
    rows, boxes = truth.dataset["annotations"], iou_type != "keypoints"
    wanted = (not row["iscrowd"] and (boxes or row["num_keypoints"] > 0) for row in rows)
    return np.fromiter(wanted, bool, len(rows))


def check_sigmas(truth: COCO, results: Results, oks_sigmas: Sequence[float]) -> np.ndarray:
    """Return the OKS sigmas float64 [P] of the P annotated keypoints, see `evaluate_coco`.

    Raises:
        DataError: the results have another number of keypoints.
        ValueError: the number of sigmas differs.
    """
    count = max((len(row["keypoints"]) // 3 for row in truth.dataset["annotations"]), default=0)
    if oks_sigmas and count and len(oks_sigmas) != count:
        raise ValueError(
            f"oks_sigmas has {len(oks_sigmas)} values, but the ground truth has {count} keypoints"
        )
    points = results.keypoints
    if points is not None and len(points) and count and points.shape[1] != count:
        raise DataError(
            f"the results have {points.shape[1]} keypoints, but the ground truth has {count}"
        )
    if oks_sigmas:
        return np.array(oks_sigmas)
    return _SIGMAS if count == len(_SIGMAS) else np.full(count, _SIGMAS.mean())


def summarize(tables: PrecisionRecall, names: Sequence[str], iou_type: str) -> dict[str, Any]:
    """Return the metrics of one IoU type, see `evaluate_coco`."""
    if iou_type == "keypoints":
        recall = {"AR": tables.ar(), "AR50": tables.ar(0.5), "AR75": tables.ar(0.75)}
    else:
        recall = {f"AR{limit}": tables.ar(limit=limit) for limit in tables.measures.limits}
    return tables.summarize(names, recall)


def category_names(truth: COCO) -> list[str]:
    """Return the category names by increasing id."""
    return [truth.cats[number]["name"] for number in sorted(truth.cats)]
