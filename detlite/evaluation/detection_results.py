"""Convert detections of a model to results: original coordinates, pasted masks, category ids."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from detlite.conventions import CONVENTIONS, Convention
from detlite.ops import paste_masks
from detlite.structures.instances import Detections
from detlite.structures.keypoints import PIXEL_CENTER
from detlite.structures.masks.formats import RLE, encode_bitmap
from detlite.structures.masks.pasting import paste_boxes
from detlite.structures.masks.rle import EncodedMasks
from detlite.structures.object_fields import object_field

from .results import Results

# No annotation has this id.
BACKGROUND_CATEGORY: dict[str, Any] = {"id": -1, "name": "background"}


def to_coco_results(
    detections: Detections,
    image_id: int,
    net_size: tuple[int, int],
    orig_size: tuple[int, int],
    categories: Sequence[dict[str, Any]],
    convention: Convention = CONVENTIONS["detlite"],
    mask_threshold: float = 0.5,
) -> Results:
    """Convert the detections of one image to coordinates of the original image.

    Detections labelled as background are dropped.

    Args:
        detections: the output of `model.detect`, in coordinates of the network input.
        image_id: of the dataset.
        net_size, orig_size: (height, width) of the network input without padding, and of the image.
        categories: the K categories {"id", "name"}; label k is categories[k - 1].
        convention, mask_threshold: settings of the model.
    """
    detections = detections[detections.labels != 0].rescale(net_size, orig_size, convention)
    rles = paste_detections(detections, orig_size, convention, mask_threshold)
    ids = [category["id"] for category in categories_of(detections.labels, categories)]
    columns = detections.boxes, detections.scores, ids, rles, detections.keypoints
    fields = {n: x for n, x in detections.extra_fields.items() if object_field(n).evaluated}
    return coco_results(image_id, *columns, convention.keypoint_center, fields)


def paste_detections(
    detections: Detections, size: tuple[int, int], convention: Convention, threshold: float
) -> list[RLE] | None:
    """Paste predicted masks into an image of (height, width); None if there is no mask head."""
    probs = detections.mask_probs
    if probs is None:
        return None
    boxes = paste_boxes(detections.pasting_boxes, probs.shape[-1], convention)
    return paste_masks(probs, boxes, size, threshold)


def categories_of(labels: Tensor, categories: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the category of each of labels [N].

    Some models detect the background, label 0 (torchvision's RetinaNet): it is
    `BACKGROUND_CATEGORY`. ValueError if a label has no category.
    """
    numbers = labels.tolist()
    for label in numbers:
        if not 0 <= label <= len(categories):
            raise ValueError(
                f"a detection has label {label}, and there are {len(categories)} categories: "
                "model.categories must name every class of the model"
            )
    return [categories[label - 1] if label else BACKGROUND_CATEGORY for label in numbers]


def coco_results(
    image_id: int,
    boxes: Tensor,
    scores: Tensor,
    category_ids: Sequence[int],
    masks: Sequence[RLE] | Tensor | None = None,
    keypoints: Tensor | None = None,
    keypoint_center: float = PIXEL_CENTER,
    fields: Mapping[str, Tensor] | None = None,
) -> Results:
    """Make the results of one image from detections in coordinates of the original image.

    Args:
        image_id: of the dataset.
        boxes, scores, category_ids: [N, 4] xyxy in pixels, [N], and N ids of the dataset.
        masks: N compressed RLEs with string counts, or bool [N, H, W], if predicted.
        keypoints: [N, P, 3] of (x, y, 1) in pixels, if predicted.
        keypoint_center: position of a keypoint within its pixel, see `Convention`.
        fields: own fields [N, ...] by name.
    """
    if isinstance(masks, Tensor):
        masks = [encode_bitmap(mask) for mask in masks.numpy(force=True)]
    if keypoints is not None:
        keypoints = keypoints - keypoints.new_tensor([keypoint_center, keypoint_center, 0])
    return Results(
        image_ids=np.full(len(boxes), image_id, np.int64),
        category_ids=np.array(category_ids, np.int64),
        scores=_array(scores),
        boxes=_array(torch.cat([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], dim=1)),
        masks=None if masks is None else EncodedMasks.from_rles(masks),
        keypoints=None if keypoints is None else _array(keypoints),
        fields={name: _array(values) for name, values in (fields or {}).items()},
    )


def _array(values: Tensor) -> np.ndarray:
    # numpy has no bfloat16.
    is_half = values.is_floating_point() and values.itemsize < 4
    return (values.float() if is_half else values).numpy(force=True)
