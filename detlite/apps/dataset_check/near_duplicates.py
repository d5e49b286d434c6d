"""Find nearly identical images by perceptual hashes: training and test sets must not share any."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from detlite.data.errors import DataError
from detlite.data.loading.image_io import read_image

_MAX_BITS = 3  # differing bits, of 64, between hashes of a rescaled or recompressed image
_MAX_DIFFERENCE = 4.0  # mean difference of thumbnails, of 255: smooth images can share a hash
_SIDE = 32  # pixels of a thumbnail

# A 64-bit hash, and a gray thumbnail uint8 [32, 32].
Fingerprint = tuple[int, np.ndarray]


def fingerprint(image: Tensor) -> Fingerprint:
    """Return the fingerprint of an image uint8 [3, H, W]."""
    gray = image.float().mean(dim=0)[None, None]
    # dHash: one bit for each of 8 x 8 horizontal neighbors, set if the right one is brighter.
    small = interpolate(gray, (8, 9), mode="area")[0, 0]
    bits = (small[:, 1:] > small[:, :-1]).flatten().tolist()
    thumbnail = interpolate(gray, (_SIDE, _SIDE), mode="area")[0, 0]
    image_hash = sum(1 << place for place, bit in enumerate(bits) if bit)
    return image_hash, thumbnail.round().to(torch.uint8).numpy()


class Fingerprints:
    """A growing list of fingerprints."""

    def __init__(self) -> None:
        self._hashes: list[int] = []
        self._thumbnails: list[np.ndarray] = []

    def add(self, one: Fingerprint) -> None:
        """Append one fingerprint."""
        self._hashes.append(one[0])
        self._thumbnails.append(one[1])

    def extend(self, other: Fingerprints) -> None:
        """Append all fingerprints of another list."""
        self._hashes += other._hashes
        self._thumbnails += other._thumbnails

    def pairs(self) -> list[tuple[int, int]]:
        """Return the index pairs (i, j), i < j, of nearly identical images."""
        hashes = np.array(self._hashes, np.uint64)
        pairs: set[tuple[int, int]] = set()
        # Hashes that differ in at most 3 bits agree in at least one of their four quarters.
        for quarter in range(_MAX_BITS + 1):
            keys = (hashes >> np.uint64(16 * quarter)) & np.uint64(0xFFFF)
            order = np.argsort(keys, kind="stable")
            for group in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
                for place, first in enumerate(group[:-1].tolist()):
                    others = group[place + 1 :]
                    others = others[_hamming(hashes[first], hashes[others]) <= _MAX_BITS]
                    pairs |= {
                        (first, other) for other in others.tolist() if self._alike(first, other)
                    }
        return sorted(pairs)

    def _alike(self, first: int, second: int) -> bool:
        difference = self._thumbnails[first].astype(np.float32) - self._thumbnails[second]
        return float(np.abs(difference).mean()) <= _MAX_DIFFERENCE


def _hamming(one: np.uint64, others: np.ndarray) -> np.ndarray:
    """Return the number of bits in which each of the others [N] differs."""
    differing = (one ^ others).view(np.uint8).reshape(-1, 8)
    return np.unpackbits(differing, axis=1).sum(axis=1)


def duplicate_groups(files: Sequence[Path]) -> list[int]:
    """Return for each image the index of the first image that it resembles, directly or not.

    An image that cannot be read is its own group.
    """
    fingerprints, readable = Fingerprints(), []
    with ThreadPoolExecutor() as pool:
        for index, one in enumerate(pool.map(_fingerprint_of, files)):
            if one is not None:
                fingerprints.add(one)
                readable.append(index)
    groups = list(range(len(files)))
    for pair in fingerprints.pairs():
        low, high = sorted(groups[readable[index]] for index in pair)
        groups = [low if group == high else group for group in groups] if low != high else groups
    return groups


def _fingerprint_of(file: Path) -> Fingerprint | None:
    try:
        return fingerprint(read_image(file))
    except DataError:
        return None
