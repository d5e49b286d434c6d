"""COCO average precision and recall, for boxes, masks and keypoints, by pycocotools or its like.

`COCOeval` matches and accumulates; the summary is made here, because its own fixes the number of
detections at 100. The numbers are those of cocodataset.org/#detection-eval, as fractions.
"""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval, Params

from ..config import ConfigError
from ..data.errors import DataError
from ..data.validation import fill_missing
from .results import IOU_TYPES, check_results

Metrics = dict[str, Any]


def evaluate_coco(
    coco_gt: COCO,
    results: Sequence[dict[str, Any]],
    iou_types: Sequence[str] = ("bbox", "segm"),
    max_dets: int = 100,
    oks_sigmas: Sequence[float] = (),
    engine: str = "pycocotools",
) -> dict[str, Metrics]:
    """Scores `results` against `coco_gt`, over all of its images.

    Args:
        coco_gt: the ground truth; it is not changed, and may lack info, area and iscrowd.
        results: detections in COCO's results form: image_id, category_id, score, and for each of
            `iou_types` bbox (xywh), segmentation (compressed RLE) or keypoints. May be empty.
        iou_types: which of "bbox", "segm" and "keypoints".
        max_dets: the detections of one image and category that count, best first. Keypoints
            always take COCO's 20.
        oks_sigmas: how far each keypoint may be off, as a part of the object's size: the
            standard deviation of its place over the square root of the area, see
            cocodataset.org/#keypoints-eval. Empty: COCO's own for its 17 keypoints; for others, of
            which nothing is known, the mean of COCO's.
        engine: who matches and accumulates: "pycocotools" or "faster-coco-eval"; the numbers are
            the same.

    Returns:
        {"bbox": {"AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR<max_dets>", "ARs",
        "ARm", "ARl", "per_category": {name: AP}}, ...}, fractions of 1. None where the ground
        truth holds nothing to find, as when no object is small. Keypoints have no small objects,
        and AR, AR50 and AR75 instead of AR by number.

    Raises:
        DataError: a result or annotation lacks a field, or names an unknown image or category.
        ValueError: an unknown IoU type, max_dets below 1, or another number of oks_sigmas than
            of keypoints.
        ConfigError: `engine` is not installed.
    """
    unknown = [iou_type for iou_type in iou_types if iou_type not in IOU_TYPES]
    if unknown:
        raise ValueError(f"iou_types: unknown {unknown[0]!r}; known: {', '.join(IOU_TYPES)}")
    if max_dets < 1:
        raise ValueError(f"max_dets must be at least 1, got {max_dets}")
    coco, evaluation = coco_engine(engine)
    metrics = {}
    for iou_type in iou_types:
        scored = check_results(results, coco_gt, iou_type)
        with contextlib.redirect_stdout(io.StringIO()):  # pycocotools reports progress by print
            ground_truth = _ground_truth(coco_gt, iou_type, coco)
            if scored:
                detections = ground_truth.loadRes(scored)
            else:  # loadRes looks at the first
                detections = _index({**ground_truth.dataset, "annotations": []}, coco)
            evaluator = evaluation(ground_truth, detections, iou_type)
            if iou_type == "keypoints":
                evaluator.params.kpt_oks_sigmas = _sigmas(ground_truth, oks_sigmas)
            else:  # keypoints have one limit, which is COCO's
                evaluator.params.maxDets = sorted({1, 10, max_dets})
            evaluator.evaluate()
            evaluator.accumulate()
        metrics[iou_type] = _summarize(evaluator, max_dets)
    return metrics


def _sigmas(ground_truth: COCO, given: Sequence[float]) -> np.ndarray:
    """float64 [P] for the P keypoints of the annotations, see `evaluate_coco`."""
    rows = (row["keypoints"] for row in ground_truth.anns.values() if row.get("keypoints"))
    count = len(next(rows, [])) // 3
    coco = Params("keypoints").kpt_oks_sigmas
    if given and count and len(given) != count:
        raise ValueError(
            f"oks_sigmas has {len(given)} values, but the ground truth has {count} keypoints"
        )
    if given:
        return np.array(given)
    return coco if count == len(coco) else np.full(count, coco.mean())


def coco_engine(name: str) -> tuple[Callable[[], Any], Callable[..., Any]]:
    """The classes COCO and COCOeval of an engine; a ConfigError if it is not installed."""
    if name == "pycocotools":
        return COCO, COCOeval
    try:
        import faster_coco_eval as faster
    except ImportError as error:
        raise ConfigError(
            f"TEST.COCO_ENGINE is {name}, but that package is not installed: "
            "pip install faster-coco-eval, or use pycocotools"
        ) from error
    # What is printed is left out, unlike what is logged.
    return (
        partial(faster.COCO, print_function=print),
        partial(faster.COCOeval_faster, print_function=print),
    )


def _ground_truth(coco_gt: COCO, iou_type: str, coco: Callable[[], Any]) -> Any:
    """A copy of `coco_gt` with all that COCOeval reads, for it to write to."""
    field = IOU_TYPES[iou_type]
    annotations = []
    for annotation in coco_gt.dataset.get("annotations", []):
        if annotation.get(field):
            annotations.append(dict(annotation))
        elif iou_type != "keypoints":  # which only some categories have
            raise DataError(
                f"ground truth: annotation {annotation.get('id')} has no {field!r}, which "
                f"{iou_type} needs"
            )
    if iou_type == "keypoints":
        for annotation in annotations:
            visible = [v > 0 for v in annotation["keypoints"][2::3]]
            annotation.setdefault("num_keypoints", sum(visible))
    return _index(fill_missing({**coco_gt.dataset, "annotations": annotations}), coco)


def _index(dataset: dict[str, Any], coco: Callable[[], Any]) -> Any:
    made = coco()
    made.dataset = dataset
    made.createIndex()
    return made


def _summarize(evaluator: COCOeval, max_dets: int) -> Metrics:
    """The means over COCOeval's tables, in which -1 stands for nothing to find."""
    params = evaluator.params
    precision = evaluator.eval["precision"]  # (T, R, K, A, M): IoU, recall, category, area, most
    recall = evaluator.eval["recall"]  # (T, K, A, M)
    last = 0 if params.iouType == "keypoints" else params.maxDets.index(max_dets)
    everything = slice(None)
    at_50, at_75 = 0, 5  # places in params.iouThrs: 0.5, 0.55, ..., 0.95

    def ap(t: Any = everything, area: str = "all", category: Any = everything) -> float | None:
        return _mean(precision[t, :, category, params.areaRngLbl.index(area), last])

    def ar(t: Any = everything, area: str = "all", most: int = last) -> float | None:
        return _mean(recall[t, :, params.areaRngLbl.index(area), most])

    areas = {area[0]: area for area in params.areaRngLbl[1:]}  # s, m, l
    metrics: Metrics = {"AP": ap(), "AP50": ap(at_50), "AP75": ap(at_75)}
    metrics |= {f"AP{letter}": ap(area=area) for letter, area in areas.items()}
    if params.iouType == "keypoints":
        metrics |= {"AR": ar(), "AR50": ar(at_50), "AR75": ar(at_75)}
    else:
        metrics |= {f"AR{most}": ar(most=m) for m, most in enumerate(params.maxDets)}
    metrics |= {f"AR{letter}": ar(area=area) for letter, area in areas.items()}
    categories = evaluator.cocoGt.loadCats(params.catIds)
    metrics["per_category"] = {
        name: ap(category=k) for k, name in enumerate(_unique_names(categories))
    }
    return metrics


def _mean(table: np.ndarray) -> float | None:
    found = table[table > -1]
    return float(found.mean()) if found.size else None


def _unique_names(categories: list[dict[str, Any]]) -> list[str]:
    names = [str(category.get("name", category["id"])) for category in categories]
    times = Counter(names)
    return [
        name if times[name] == 1 else f"{name} (id {category['id']})"
        for name, category in zip(names, categories, strict=True)
    ]
