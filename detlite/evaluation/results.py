"""Detections as COCO results: the json entries that every COCO tool reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pycocotools.coco import COCO
from torch import Tensor
from torchvision.ops import box_convert

from ..convention import CONVENTIONS, Convention
from ..data.errors import DataError
from ..structures.instances import Detections
from ..structures.keypoints import PIXEL_CENTRE
from ..structures.masks import RLE, encode_bitmap

IOU_TYPES = {"bbox": "bbox", "segm": "segmentation", "keypoints": "keypoints"}  # type -> its field

BACKGROUND: dict[str, Any] = {"id": -1, "name": "background"}


def to_coco_results(
    detections: Detections,
    image_id: int,
    net_size: tuple[int, int],
    orig_size: tuple[int, int],
    categories: Sequence[dict[str, Any]],
    convention: Convention = CONVENTIONS["detlite"],
    mask_threshold: float = 0.5,
) -> list[dict[str, Any]]:
    """One image's detections as COCO results in the frame of the original picture.

    Args:
        detections: what `model.detect` gives for the image, N of them in the frame of the
            network's input.
        image_id: the id that the results carry.
        net_size: (height, width) of the image as the network got it, without padding.
        orig_size: (height, width) of the original picture.
        categories: the K categories {"id", "name"}; label k is categories[k - 1].
        convention, mask_threshold: the model's own.

    Returns:
        One dict for each detection, in their order: image_id, category_id, bbox (xywh in pixels),
        score and, with such a head, segmentation (compressed RLE of the original size) and
        keypoints [x1, y1, 1, ...] as indices of pixels.
    """
    boxes = convention.rescale_boxes(detections.boxes, net_size, orig_size)
    rles = keypoints = None
    if detections.mask_probs is not None:
        rles = convention.paste_rle(detections.mask_probs, boxes, orig_size, mask_threshold)
    if detections.keypoints is not None:
        keypoints = convention.rescale_keypoints(detections.keypoints, net_size, orig_size)
    ids = [category["id"] for category in categories_of(detections.labels, categories)]
    return coco_results(
        image_id, boxes, detections.scores, ids, rles, keypoints, convention.keypoint_center
    )


def categories_of(labels: Tensor, categories: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The category of each of labels [N]; a ValueError where a label has none.

    The background, label 0, is detected by models that score it (torchvision's RetinaNet): it is
    `BACKGROUND`, whose id no annotation has.
    """
    numbers = labels.tolist()
    for label in numbers:
        if not 0 <= label <= len(categories):
            raise ValueError(
                f"a detection has label {label}, and there are {len(categories)} categories: "
                "model.categories must name every class of the model"
            )
    return [categories[label - 1] if label else BACKGROUND for label in numbers]


def coco_results(
    image_id: int,
    boxes: Tensor,
    scores: Tensor,
    category_ids: Sequence[int],
    masks: Sequence[RLE] | Tensor | None = None,
    keypoints: Tensor | None = None,
    keypoint_center: float = PIXEL_CENTRE,
) -> list[dict[str, Any]]:
    """COCO results of one image from detections in the original picture's frame.

    Args:
        image_id: the id that the results carry.
        boxes: [N, 4] xyxy in pixels.
        scores: [N].
        category_ids: N ids of the data set's own.
        masks: N compressed RLEs with string counts, or bool [N, H, W]; None: no masks.
        keypoints: [N, P, 3] of (x, y, 1) in pixels; None: no keypoints.
        keypoint_center: where in the pixel of that index a keypoint lies, see `Convention`.
    """
    rows = box_convert(boxes, "xyxy", "xywh").tolist()
    results: list[dict[str, Any]] = [
        {"image_id": image_id, "category_id": category_id, "bbox": box, "score": score}
        for category_id, box, score in zip(category_ids, rows, scores.tolist(), strict=True)
    ]
    if masks is not None:
        for result, mask in zip(results, masks, strict=True):
            bitmap = isinstance(mask, Tensor)
            result["segmentation"] = encode_bitmap(mask.cpu().numpy()) if bitmap else mask
    if keypoints is not None:
        indices = keypoints - keypoints.new_tensor([keypoint_center, keypoint_center, 0])
        for result, row in zip(results, indices.flatten(1).tolist(), strict=True):
            result["keypoints"] = row
    return results


def check_results(
    results: Sequence[dict[str, Any]], coco_gt: COCO, iou_type: str
) -> list[dict[str, Any]]:
    """Refuses what pycocotools would crash on or pass over in silence.

    Args:
        results: detections in COCO's results form.
        coco_gt: the ground truth that they are about.
        iou_type: a key of IOU_TYPES: what is scored.

    Returns:
        The results with nothing but what is scored, because pycocotools and its like would take a
        mask's area from a bbox beside it.

    Raises:
        DataError: naming the result by its place in the list.
    """
    fields = ("image_id", "category_id", "score", IOU_TYPES[iou_type])
    for number, result in enumerate(results):
        for field in fields:
            if field not in result:
                raise DataError(f"result {number} has no {field!r}, which {iou_type} needs")
        image = coco_gt.imgs.get(result["image_id"])
        if image is None:
            raise DataError(
                f"result {number}: image_id {result['image_id']!r} is not in the ground truth; "
                "are these the results of another data set?"
            )
        if result["category_id"] not in coco_gt.cats:
            ids = ", ".join(map(str, sorted(coco_gt.cats)[:10]))
            more = ", ..." if len(coco_gt.cats) > 10 else ""
            raise DataError(
                f"result {number}: category_id {result['category_id']!r} is not in the ground "
                f"truth, whose ids are {ids}{more}"
            )
        if not math.isfinite(result["score"]):
            raise DataError(f"result {number}: the score is {result['score']}")
        if iou_type == "segm":
            _check_rle(result["segmentation"], image, number)
    return [{field: result[field] for field in fields} for result in results]


def _check_rle(rle: Any, image: dict[str, Any], number: int) -> None:
    if not isinstance(rle, dict) or not isinstance(rle.get("counts"), str | bytes):
        raise DataError(f"result {number}: 'segmentation' must be a compressed RLE")
    size = [image["height"], image["width"]]
    if list(rle.get("size", ())) != size:
        raise DataError(
            f"result {number}: the mask's size is {rle.get('size')}, that of image {image['id']} "
            f"is {size} (height, width)"
        )
