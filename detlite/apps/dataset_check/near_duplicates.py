"""Pictures that are nearly the same, by perceptual hashes: what a split must not share."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

_BITS = 3  # of 64 that hashes of one picture may differ in, rescaled or compressed anew
_LEVELS = 4.0  # of 255 that small copies may differ by, on average: smooth pictures share hashes
_SIDE = 32  # of the small copy


Fingerprint = tuple[int, np.ndarray]


def fingerprint(image: Tensor) -> Fingerprint:
    """The hash and the small copy of a picture uint8 [3, H, W]."""
    grey = image.float().mean(dim=0)[None, None]
    # A bit for each of 8 x 8 neighbours: is the right one brighter? (dHash)
    small = interpolate(grey, (8, 9), mode="area")[0, 0]
    bits = (small[:, 1:] > small[:, :-1]).flatten().tolist()
    copy = interpolate(grey, (_SIDE, _SIDE), mode="area")[0, 0]
    hashed = sum(1 << place for place, bit in enumerate(bits) if bit)
    return hashed, copy.round().to(torch.uint8).numpy()


class Fingerprints:
    """Hashes and small copies of pictures, collected one after the other."""

    def __init__(self) -> None:
        self._hashes: list[int] = []
        self._copies: list[np.ndarray] = []

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, one: Fingerprint) -> None:
        """That of a picture, from `fingerprint`."""
        hashed, copy = one
        self._hashes.append(hashed)
        self._copies.append(copy)

    def extend(self, other: Fingerprints) -> None:
        """Those of another, behind its own."""
        self._hashes += other._hashes
        self._copies += other._copies

    def pairs(self) -> list[tuple[int, int]]:
        """Pairs (i, j), i < j, of pictures in the order of `add` that are nearly the same."""
        hashes = np.array(self._hashes, np.uint64)
        found: set[tuple[int, int]] = set()
        # Hashes that differ in at most 3 bits agree in one of four quarters.
        for quarter in range(_BITS + 1):
            keys = (hashes >> np.uint64(16 * quarter)) & np.uint64(0xFFFF)
            order = np.argsort(keys, kind="stable")
            for group in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
                for place, first in enumerate(group[:-1].tolist()):
                    others = group[place + 1 :]
                    others = others[_distance(hashes[first], hashes[others]) <= _BITS]
                    found |= {
                        (first, other) for other in others.tolist() if self._same(first, other)
                    }
        return sorted(found)

    def _same(self, first: int, second: int) -> bool:
        difference = self._copies[first].astype(np.float32) - self._copies[second]
        return float(np.abs(difference).mean()) <= _LEVELS


def _distance(one: np.uint64, others: np.ndarray) -> np.ndarray:
    """In how many bits each of the others [N] differs."""
    differing = (one ^ others).view(np.uint8).reshape(-1, 8)
    return np.unpackbits(differing, axis=1).sum(axis=1)
