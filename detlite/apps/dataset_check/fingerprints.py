"""Fingerprints of images, and the search for nearly identical ones in linear time."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from detlite.data.images.pixels import ImageOptions
from detlite.data.images.reading import read_image
from detlite.data.images.sources import ImageSource
from detlite.files.errors import DataError
from detlite.files.progress import progress_bar
from detlite.threads import in_threads

_MAX_BITS = 3  # differing bits, of 64, between hashes of a rescaled or recompressed image
_NOISE = 2.0  # of 255: smaller differences of neighbors, as in a dark background, set no bit
_MAX_DIFFERENCE = 4.0  # mean difference of thumbnails, of 255: smooth images can share a hash
_MAX_DISTANCE = 0.25  # 1 minus their correlation: dark images with few objects differ little
_FLAT = 0.1  # variance of a thumbnail without content, because values are rounded
_LUMINANCE = torch.tensor([0.299, 0.587, 0.114])[:, None, None]  # as in gray copies of an image
_SIDE = 16  # pixels of a thumbnail
_READ_SIZE = (64, 64)  # to which a JPEG may be reduced
_WINDOW = 32  # images that each one is compared with in an order of hashes
_GROUP = 4096  # pairs that are compared in one pass
_BIT_COUNTS = np.array([n.bit_count() for n in range(1 << 16)], np.uint8)

# Arrays [N] of this type are fingerprints of images; `known` is False for unreadable ones.
FINGERPRINT = np.dtype([("known", "?"), ("hash", "u8"), ("thumbnail", "u1", (_SIDE, _SIDE))])


def fingerprint(image: Tensor) -> tuple[bool, int, np.ndarray]:
    """Return the fingerprint of an image uint8 [C, H, W], RGB if it has three channels."""
    weights = _LUMINANCE if len(image) == 3 else 1 / len(image)
    gray = (image.float() * weights).sum(dim=0)[None, None]
    # dHash: one bit for each of 8 x 8 horizontal neighbors, set if the right one is brighter.
    small = interpolate(gray, (8, 9), mode="area")[0, 0]
    bits = (small[:, 1:] > small[:, :-1] + _NOISE).flatten().tolist()
    thumbnail = interpolate(gray, (_SIDE, _SIDE), mode="area")[0, 0]
    image_hash = sum(1 << k for k, bit in enumerate(bits) if bit)
    return True, image_hash, thumbnail.round().to(torch.uint8).numpy()


def read_fingerprints(sources: Sequence[ImageSource], options: ImageOptions) -> np.ndarray:
    """Read images with several threads, and return their fingerprints."""

    def read(source: ImageSource) -> tuple[bool, int, Any]:
        try:
            return fingerprint(read_image(source, options=options, min_size=_READ_SIZE))
        except DataError:
            return False, 0, 0

    found = np.zeros(len(sources), FINGERPRINT)
    rows = in_threads(read, sources)
    for number, row in enumerate(progress_bar(rows, "comparing images", len(sources))):
        found[number] = row
    return found


def connect(labels: np.ndarray, first: np.ndarray, second: np.ndarray) -> None:
    """Join the groups of pairs of images, in place.

    `labels`, int64 [N], has the index of the first image of each image's group.
    """
    while True:
        first, second = labels[first], labels[second]
        differ = first != second
        if not differ.any():
            return
        first, second = first[differ], second[differ]
        np.minimum.at(labels, np.maximum(first, second), np.minimum(first, second))
        while ((shorter := labels[labels]) != labels).any():
            labels[:] = shorter


def nearly_identical(prints: np.ndarray) -> np.ndarray:
    """Group nearly identical images, also by others between them.

    Hashes that differ in at most three bits agree in at least one of their quarters. So the images
    are ordered by each quarter and what follows it, and each is compared with the next ones.

    Returns:
        For each image, the index of the first one of its group, int64 [N].
    """
    labels = np.arange(len(prints))
    known = np.flatnonzero(prints["known"])
    hashes = prints["hash"]
    brightness = prints["thumbnail"].mean(axis=(1, 2))
    for quarter in range(_MAX_BITS + 1):
        left, right = np.uint64(16 * quarter), np.uint64((64 - 16 * quarter) % 64)
        rotated = (hashes << left) | (hashes >> right) if quarter else hashes
        order = known[np.lexsort((brightness[known], rotated[known]))]
        keys = rotated[order] >> np.uint64(48)
        for offset in range(1, _WINDOW + 1):
            first, second = order[:-offset], order[offset:]
            tried = (keys[:-offset] == keys[offset:]) & (labels[first] != labels[second])
            first, second = first[tried], second[tried]
            differing = (hashes[first] ^ hashes[second]).view(np.uint16).reshape(-1, 4)
            near = _BIT_COUNTS[differing].sum(axis=1) <= _MAX_BITS
            first, second = first[near], second[near]
            difference, distance = compare(prints, first, second)
            same = (difference <= _MAX_DIFFERENCE) & ~(distance > _MAX_DISTANCE)
            connect(labels, first[same], second[same])
    return labels


def compare(
    prints: np.ndarray, first: np.ndarray, second: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compare the thumbnails of pairs of images.

    Returns:
        Their mean absolute differences, and 1 minus their correlations, float32 [P]. The latter is
        NaN if both thumbnails are flat.
    """
    differences, distances = np.zeros((2, len(first)), np.float32)
    for start in range(0, len(first), _GROUP):  # bounds the memory
        rows = slice(start, start + _GROUP)
        one, other = (
            prints["thumbnail"][pair[rows]].reshape(-1, _SIDE**2).astype(np.float32)
            for pair in (first, second)
        )
        differences[rows] = np.abs(one - other).mean(axis=1)
        one, other = (x - x.mean(axis=1, keepdims=True) for x in (one, other))
        variances = (one**2).mean(axis=1), (other**2).mean(axis=1)
        distances[rows] = 1 - (one * other).mean(axis=1) / np.sqrt(
            np.prod(variances, axis=0) + 1e-9
        )
        distances[rows][np.maximum(*variances) < _FLAT] = np.nan
    return differences, distances
