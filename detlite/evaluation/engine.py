"""COCO's matching of detections and objects, by a library with pycocotools' interface.

hotcoco computes the numbers of pycocotools in a fraction of the time; pycocotools is used where it
is not installed. Letters in shapes: D detections, T IoU thresholds, A area ranges.
"""

import contextlib
import importlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
from pycocotools.coco import COCO

from detlite.data.annotations.scan import without_gc

from .results import Results
from .truth import numbers_of

# The modules of COCO and COCOeval of each library, the preferred one first.
ENGINES = {
    "hotcoco": ("hotcoco", "hotcoco"),
    "pycocotools": ("pycocotools.coco", "pycocotools.cocoeval"),
}
# Object areas in square pixels, both ends included.
AREA_RANGES = {
    "all": (0.0, 1e10),
    "small": (0.0, 32.0**2),
    "medium": (32.0**2, 96.0**2),
    "large": (96.0**2, 1e10),
}
IOU_THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALL_THRESHOLDS = np.linspace(0.0, 1.0, 101)
FALSE_POSITIVE, TRUE_POSITIVE, IGNORED = 0, 1, 2  # outcomes of a detection

_NAMED_IOUS = (0.5, 0.75)  # always measured: AP50, AP75, the best score threshold
_IMAGES_PER_STEP = 250
_THRESHOLDS = 10_000  # of scores, at most, at which detections are counted
# What each IoU type needs of an object, besides its box.
_FIELDS: dict[str, tuple[str, ...]] = {
    "bbox": (),
    "segm": ("segmentation",),
    "keypoints": ("keypoints", "num_keypoints"),
}
_LVIS_LISTS = ("neg_category_ids", "not_exhaustive_category_ids")


@dataclass(frozen=True)
class Measures:
    """Object areas, IoUs and numbers of detections for which metrics are computed."""

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
        return np.isin(self.ious, self.averaged)

    def area(self, name: str) -> int:
        """Return the index of an area range."""
        return [*self.areas].index(name)


def load_engine() -> tuple[Any, Any]:
    """Return the classes COCO and COCOeval of the first library of `ENGINES` that is installed."""
    modules = next(modules for name, modules in ENGINES.items() if find_spec(name))
    coco, evaluator = map(importlib.import_module, modules)
    return coco.COCO, evaluator.COCOeval


@without_gc()
def run_engine(
    truth: COCO,
    results: Results,
    kind: str,
    measures: Measures,
    sigmas: Sequence[float] | np.ndarray = (),
    **options: Any,
) -> Any:
    """Match detections to objects, and accumulate precision and recall.

    The library gets numbers instead of ids: images and categories are numbered from 0 by
    increasing id, annotations and detections from 1 in their order.

    Args:
        truth: the objects from `read_coco_gt`.
        results: detections of its images and categories, which passed `check_results`.
        kind: "bbox", "segm" or "keypoints".
        measures: the IoU thresholds, areas and limits.
        sigmas: OKS sigmas of the keypoints.
        options: more arguments of the library's COCOeval.

    Returns:
        the library's COCOeval, with the tables `eval["precision"]` and `eval["recall"]`.
    """
    coco, coco_eval = load_engine()
    with contextlib.redirect_stdout(io.StringIO()):
        content = _truth_content(truth, kind)
        objects = _load(coco, content)
        if len(results):
            detections = _load_results(objects, truth, results, kind)
        else:  # pycocotools refuses an empty list
            detections = _load(coco, {**content, "annotations": []})
        evaluator = coco_eval(objects, detections, kind, **options)
        params = evaluator.params
        params.iouThrs, params.maxDets = measures.ious.tolist(), [*measures.limits]
        params.areaRng = [[*bounds] for bounds in measures.areas.values()]
        params.areaRngLbl = [*measures.areas]
        if len(sigmas):
            params.kpt_oks_sigmas = np.array(sigmas)
        evaluator.evaluate()
        evaluator.accumulate()
    return evaluator


def _load(coco: Any, content: dict[str, Any]) -> Any:
    loaded = coco()
    loaded.dataset = content
    loaded.createIndex()
    return loaded


def _truth_content(truth: COCO, kind: str) -> dict[str, Any]:
    """Return what the library needs of a ground truth, with numbers instead of ids."""
    numbers, names = numbers_of(truth.imgs), numbers_of(truth.cats)
    images = []
    for key, n in numbers.items():
        image = truth.imgs[key]
        lists = {name: image[name] for name in _LVIS_LISTS if name in image}
        known = {name: [names[k] for k in ids if k in names] for name, ids in lists.items()}
        images.append({"id": n, "height": image["height"], "width": image["width"], **known})
    fields = ("bbox", "area", "iscrowd", *_FIELDS[kind])
    annotations = [
        {"id": n, "image_id": numbers[row["image_id"]], "category_id": names[row["category_id"]]}
        | {field: row[field] for field in fields}
        for n, row in enumerate(truth.dataset["annotations"], start=1)
    ]
    frequencies = [truth.cats[key].get("frequency", "f") for key in names]
    categories = [{"id": n, "name": str(n), "frequency": f} for n, f in enumerate(frequencies)]
    return {"info": {}, "images": images, "categories": categories, "annotations": annotations}


def _load_results(objects: Any, truth: COCO, results: Results, kind: str) -> Any:
    """Return the results as the library's COCO, from columns: a dict for each takes long.

    The size of a detected mask is its area, also if it has a box, as in detectron2. Keypoints have
    the area of their box, if there is one, as in detectron2.
    """
    images = np.searchsorted(sorted(truth.imgs), results.image_ids)
    categories = np.searchsorted(sorted(truth.cats), results.category_ids)
    thresholds, ranks = _rank(results.scores)
    scores = ranks / len(thresholds)
    boxes = np.zeros((len(results), 4)) if results.boxes is None else results.boxes
    rows: Any = np.column_stack([images, boxes, scores, categories]).astype(np.float64)
    if kind == "keypoints":
        assert results.keypoints is not None
        names = ("image_id", "category_id", "score", "keypoints", "bbox")
        points = results.keypoints.reshape(len(results), -1)
        columns = [images, categories, scores, points, boxes][: 4 + (results.boxes is not None)]
        values = zip(*(column.tolist() for column in columns), strict=True)
        rows = [dict(zip(names, row, strict=False)) for row in values]
    if kind != "segm":
        return objects.loadRes(rows)
    assert results.masks is not None
    rles, areas = [*results.masks.rles()], results.masks.areas
    if hasattr(objects, "update_anns"):  # hotcoco
        loaded = objects.loadRes(rows, segmentation=rles)
        loaded.update_anns(ids=np.arange(1, len(results) + 1), area=areas)
        return loaded
    loaded = objects.loadRes(rows)
    for row, rle, area in zip(loaded.dataset["annotations"], rles, areas.tolist(), strict=True):
        row |= {"segmentation": rle, "area": area}
    return loaded


def _rank(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return M increasing thresholds, at most `_THRESHOLDS`, and the ranks of the scores [D].

    Ranks are above 0 and below M, in the order of the scores. A score reaches a threshold if its
    rank is above the index of the threshold. Each of a few different scores is a threshold.
    """
    levels, numbers = np.unique(scores, return_inverse=True)
    step = max(-(-len(levels) // _THRESHOLDS), 1)
    return levels[::step], (numbers + 0.5) / step


def count_by_score(
    evaluator: Any, measures: Measures, scores: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count detections and true positives at IoU 0.5, among objects of any area.

    Args:
        evaluator: from `run_engine`.
        measures: its arguments.
        scores: of its results, float [D].

    Returns:
        Score thresholds, decreasing float64 [M], with the numbers of detections that reach them,
        without ignored ones, and of true positives, int64 [M].
    """
    thresholds, ranks = _rank(scores)
    if hasattr(evaluator, "calibration") and len(scores):  # hotcoco
        bins = evaluator.calibration(n_bins=len(thresholds), iou_threshold=0.5)["bins"]
        counts = np.array([entry["count"] for entry in bins])
        fractions = np.array([entry["avg_accuracy"] for entry in bins])
        hits = np.where(counts > 0, counts * fractions, 0).round().astype(np.int64)
    else:
        outcomes = read_outcomes(evaluator, measures, len(scores))[measures.area("all")]
        outcomes, numbers = outcomes[measures.at(0.5)], ranks.astype(np.int64)
        counts, hits = (
            np.bincount(numbers[chosen], minlength=len(thresholds))
            for chosen in (outcomes != IGNORED, outcomes == TRUE_POSITIVE)
        )
    return thresholds[::-1].astype(np.float64), counts[::-1].cumsum(), hits[::-1].cumsum()


@without_gc()
def read_outcomes(evaluator: Any, measures: Measures, count: int) -> np.ndarray:
    """Return the outcomes uint8 [A, T, D] of `count` detections with the limit `max_dets`.

    Detections beyond the limit are IGNORED. Evaluates some images at a time, because the library
    returns the outcomes as many Python lists, among which looking for cycles would take most of
    the time.
    """
    ranges = [[*bounds] for bounds in measures.areas.values()]
    outcomes = np.full((len(ranges), len(measures.ious), count), IGNORED, np.uint8)
    params, images = evaluator.params, evaluator.params.imgIds
    params.maxDets = [measures.max_dets]
    for first in range(0, len(images), _IMAGES_PER_STEP):
        params.imgIds = images[first : first + _IMAGES_PER_STEP]
        with contextlib.redirect_stdout(io.StringIO()):
            evaluator.evaluate()
        for entry in evaluator.evalImgs:  # of each category, area and image
            if entry is not None and len(entry["dtIds"]):
                numbers, area = np.array(entry["dtIds"]) - 1, ranges.index([*entry["aRng"]])
                matched = np.array(entry["dtMatches"]) > 0
                ignored = np.array(entry["dtIgnore"], bool)
                outcomes[area][:, numbers] = np.where(ignored, IGNORED, matched)
    params.imgIds = images
    return outcomes
