"""Average recall of class-agnostic boxes, as Detectron evaluates region proposals.

Proposals are assigned to objects greedily by IoU, one proposal per object. pycocotools computes
nearly the same numbers but needs hours for 1000 boxes per image.
"""

import numpy as np
from pycocotools import mask as rle_codec
from pycocotools.coco import COCO
from yacs.config import CfgNode

from detlite.data import CocoDataset
from detlite.data.datasets.ground_truth import build_coco_gt
from detlite.files.errors import DataError

from .engine import AREA_RANGES, IOU_THRESHOLDS
from .evaluators import EVALUATORS, Evaluator
from .metrics import Metrics
from .results import Results
from .truth import best_of_each_image

_LIMITS = (100, 1000)  # numbers of highest-scoring boxes per image


def evaluate_proposals(coco_gt: COCO, results: Results) -> dict[str, float | None]:
    """Compute the average recall at IoU 0.5, 0.55, ..., 0.95 of the best 100 and 1000 boxes.

    Crowds are ignored, and boxes may have any category.

    Returns:
        {"AR@100", "ARs@100", "ARm@100", "ARl@100", "AR@1000", ...} as fractions, where s, m and l
        are small, medium and large objects. None if there are no such objects.
    """
    boxes = results.boxes
    if boxes is None:
        if len(results):
            raise DataError("the results have no 'bbox', which the evaluator 'proposals' needs")
        boxes = np.empty((0, 4))
    order = best_of_each_image(results.scores, results.image_ids, max(_LIMITS))
    image_ids = results.image_ids[order]
    areas: list[float] = []
    ious: dict[int, list[np.ndarray]] = {limit: [np.empty(0)] for limit in _LIMITS}
    for image_id in coco_gt.imgs:
        objects = [row for row in coco_gt.imgToAnns[image_id] if not row.get("iscrowd", 0)]
        areas += [row.get("area", row["bbox"][2] * row["bbox"][3]) for row in objects]
        first, last = np.searchsorted(image_ids, [image_id, image_id + 1])
        best = boxes[order[first:last]]
        gt_boxes = np.array([row["bbox"] for row in objects], float).reshape(-1, 4)
        table = np.zeros((len(gt_boxes), len(best)))
        if table.size:
            table = rle_codec.iou(best.astype(float), gt_boxes, [0] * len(gt_boxes)).T
        for limit in _LIMITS:
            ious[limit].append(_assign_greedily(table[:, :limit].copy()))
    area = np.array(areas)
    metrics: dict[str, float | None] = {}
    for limit in _LIMITS:
        recalled = np.concatenate(ious[limit])[:, None] >= IOU_THRESHOLDS
        for name, (low, high) in AREA_RANGES.items():
            counted = recalled[(area >= low) & (area <= high)]
            letter = "" if name == "all" else name[0]
            metrics[f"AR{letter}@{limit}"] = float(counted.mean()) if len(counted) else None
    return metrics


def _assign_greedily(table: np.ndarray) -> np.ndarray:
    """Return the IoU [G] of each object with its proposal. Overwrites `table` [G, P]."""
    ious = np.zeros(len(table))
    for _ in range(min(table.shape)):
        g, p = np.unravel_index(table.argmax(), table.shape)
        if table[g, p] <= 0:
            break
        ious[g] = table[g, p]
        table[g, :] = table[:, p] = -1
    return ious


@EVALUATORS.register("proposals")
class ProposalEvaluator(Evaluator):
    """Average recall of class-agnostic boxes: "box_proposal"."""

    def evaluate(self, cfg: CfgNode, dataset: CocoDataset, results: Results) -> Metrics:
        return {"box_proposal": evaluate_proposals(build_coco_gt(dataset), results)}
