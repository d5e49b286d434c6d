"""Slow, plain definitions of the operators, to test the kernels against.

Coordinates are computed in the RoIs' own type, as the kernels must; all else is float64.
"""

import numpy as np


def axis_weights(
    low: np.floating,
    high: np.floating,
    scale: float,
    bins: int,
    size: int,
    sampling_ratio: int,
    aligned: bool,
) -> np.ndarray:
    """Return the weights [bins, size] of one RoIAlign axis as a dense matrix."""
    real = type(low)
    weights = np.zeros((bins, size))
    with np.errstate(all="ignore"):
        offset = real(0.5 if aligned else 0)
        start = low * real(scale) - offset
        length = high * real(scale) - offset - start
        if not aligned and length < 1:
            length = real(1)
        bin_size = length / real(bins)
        if sampling_ratio <= 0 and not np.isfinite(bin_size):
            return weights
        samples = sampling_ratio if sampling_ratio > 0 else max(int(np.ceil(bin_size)), 0)
        for b in range(bins):
            indices = np.arange(samples).astype(real)
            positions = (
                start + real(b) * bin_size + (indices + real(0.5)) * bin_size / real(samples)
            )
            inside = (positions >= -1) & (positions <= size) & (size > 0)
            for position in positions[inside].astype(np.float64):
                position = min(max(position, 0.0), size - 1.0)
                cell = min(int(position), size - 1)
                weights[b, cell] += (1 - (position - cell)) / samples
                if position > cell:
                    weights[b, cell + 1] += (position - cell) / samples
    return weights


def roi_align(
    features: np.ndarray,
    rois: np.ndarray,
    pooled: tuple[int, int],
    scale: float,
    sampling_ratio: int,
    aligned: bool,
) -> np.ndarray:
    """[N, C, H, W] and [K, 5] to [K, C, *pooled]."""
    _, channels, height, width = features.shape
    output = np.zeros((len(rois), channels, *pooled))
    for k, (image, x1, y1, x2, y2) in enumerate(rois):
        rows = axis_weights(y1, y2, scale, pooled[0], height, sampling_ratio, aligned)
        columns = axis_weights(x1, x2, scale, pooled[1], width, sampling_ratio, aligned)
        output[k] = np.einsum("py,cyx,qx->cpq", rows, features[int(image)], columns)
    return output


def axis_cells(
    low: np.floating, high: np.floating, scale: float, bins: int, size: int
) -> list[range]:
    """Return the cells of each bin along one RoIPool axis."""
    real = type(low)
    with np.errstate(all="ignore"):
        # numpy rounds halves to even; the operator rounds them away from zero.
        start, last = (
            np.copysign(np.floor(np.abs(c * real(scale)) + real(0.5)), c) for c in (low, high)
        )
        if not np.isfinite(start) or not np.isfinite(last):
            return [range(0)] * bins
        bin_size = max(last - start + real(1), real(1)) / real(bins)
        edges = []
        for b in range(bins):
            begin = np.floor(real(b) * bin_size) + start
            end = np.ceil(real(b + 1) * bin_size) + start
            edges.append(range(int(np.clip(begin, 0, size)), int(np.clip(end, 0, size))))
    return edges


def roi_pool(
    features: np.ndarray, rois: np.ndarray, pooled: tuple[int, int], scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """[N, C, H, W] and [K, 5] to the maxima [K, C, *pooled] and their cells."""
    _, channels, height, width = features.shape
    output = np.zeros((len(rois), channels, *pooled))
    argmax = np.full(output.shape, -1)
    for k, (image, x1, y1, x2, y2) in enumerate(rois):
        rows = axis_cells(y1, y2, scale, pooled[0], height)
        columns = axis_cells(x1, x2, scale, pooled[1], width)
        for c in range(channels):
            plane = features[int(image), c]
            for p, ys in enumerate(rows):
                for q, xs in enumerate(columns):
                    for y in ys:
                        for x in xs:
                            best = output[k, c, p, q]
                            if argmax[k, c, p, q] < 0 or plane[y, x] > best:
                                output[k, c, p, q] = plane[y, x]
                                argmax[k, c, p, q] = y * width + x
    return output, argmax


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
