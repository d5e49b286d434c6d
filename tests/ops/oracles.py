"""A slow, plain definition of NMS, to test the kernels against."""

import numpy as np


def iou(a: np.ndarray, b: np.ndarray) -> np.floating:
    width = max(min(a[2], b[2]) - max(a[0], b[0]), a.dtype.type(0))
    height = max(min(a[3], b[3]) - max(a[1], b[1]), a.dtype.type(0))
    area_a = (a[2] - a[0]) * (a[3] - a[1])
    area_b = (b[2] - b[0]) * (b[3] - b[1])
    with np.errstate(all="ignore"):
        return width * height / (area_a + area_b - width * height)


def batched_nms(
    boxes: np.ndarray, scores: np.ndarray, idxs: np.ndarray, threshold: float
) -> list[int]:
    """The indices kept, by decreasing score, lower index first among equals; NaN never."""
    valid = ~np.isnan(scores) & ~np.isnan(boxes).any(axis=1)
    kept: list[int] = []
    for i in sorted(np.flatnonzero(valid), key=lambda i: (-scores[i], i)):
        if not any(idxs[i] == idxs[j] and iou(boxes[j], boxes[i]) > threshold for j in kept):
            kept.append(int(i))
    return kept
