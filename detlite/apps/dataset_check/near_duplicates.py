"""Find nearly identical images by perceptual hashes: training and test sets must not share any."""

import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from detlite.data.images.reading import read_image
from detlite.files.errors import DataError

_MAX_BITS = 3  # differing bits, of 64, between hashes of a rescaled or recompressed image
_MAX_DIFFERENCE = 4.0  # mean difference of thumbnails, of 255: smooth images can share a hash
_SIDE = 32  # pixels of a thumbnail
_MAX_COMPARED = 2000  # images that `split_groups` reads
_MIN_GROUPS = 5
_SEQUENCE_NUMBER = re.compile(r"\d+(?=\.\w+$)")

# A 64-bit hash, and a gray thumbnail uint8 [32, 32].
Fingerprint = tuple[int, np.ndarray]


def fingerprint(image: Tensor) -> Fingerprint:
    """Return the fingerprint of an image uint8 [3, H, W]."""
    gray = image.float().mean(dim=0)[None, None]
    # dHash: one bit for each of 8 x 8 horizontal neighbors, set if the right one is brighter.
    small = interpolate(gray, (8, 9), mode="area")[0, 0]
    bits = (small[:, 1:] > small[:, :-1]).flatten().tolist()
    thumbnail = interpolate(gray, (_SIDE, _SIDE), mode="area")[0, 0]
    image_hash = sum(1 << k for k, bit in enumerate(bits) if bit)
    return image_hash, thumbnail.round().to(torch.uint8).numpy()


def similar_pairs(fingerprints: Sequence[Fingerprint]) -> list[tuple[int, int]]:
    """Return the index pairs (i, j), i < j, of nearly identical images."""
    hashes = np.array([image_hash for image_hash, _ in fingerprints], np.uint64)
    pairs: set[tuple[int, int]] = set()
    # Hashes that differ in at most 3 bits agree in at least one of their four quarters.
    for quarter in range(_MAX_BITS + 1):
        keys = (hashes >> np.uint64(16 * quarter)) & np.uint64(0xFFFF)
        order = np.argsort(keys, kind="stable")
        for group in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
            for k, first in enumerate(group[:-1].tolist()):
                others = group[k + 1 :]
                differing = (hashes[first] ^ hashes[others]).view(np.uint8).reshape(-1, 8)
                near = others[np.unpackbits(differing, axis=1).sum(axis=1) <= _MAX_BITS]
                pairs |= {(first, other) for other in near.tolist()}

    def are_similar(first: int, second: int) -> bool:
        thumbnails = (fingerprints[index][1].astype(np.float32) for index in (first, second))
        return float(np.abs(np.subtract(*thumbnails)).mean()) <= _MAX_DIFFERENCE

    return sorted(pair for pair in pairs if are_similar(*pair))


def duplicate_groups(files: Sequence[Path]) -> list[int]:
    """Group nearly identical images; return the index of the first image of each image's group.

    An image that cannot be read is its own group.
    """
    with ThreadPoolExecutor() as pool:
        fingerprints = list(pool.map(_fingerprint_of, files))
    readable = {index: known for index, known in enumerate(fingerprints) if known is not None}
    indices, groups = list(readable), list(range(len(files)))
    for pair in similar_pairs([*readable.values()]):
        low, high = sorted(groups[indices[index]] for index in pair)
        groups = [low if group == high else group for group in groups] if low != high else groups
    return groups


def split_groups(folder: Path, names: Sequence[str]) -> tuple[dict[str, str], int]:
    """Return the first name of each image's group, for images that must stay in the same split.

    Nearly identical images form a group. If two images of a numbered sequence of names are nearly
    identical, it is taken for the frames of a video, and all of it is a group. Returns {} if there
    are too many images to compare, or if the groups are too few to split them. Also returns the
    number of images that should stay together, but do not, because the groups are too few.
    """
    if len(names) > _MAX_COMPARED:
        return {}, 0
    firsts = duplicate_groups([folder / name for name in names])
    sequences = [_SEQUENCE_NUMBER.sub("", name) for name in names]
    pairs = list(enumerate(firsts))
    videos = {sequences[n] for n, first in pairs if n != first and sequences[n] == sequences[first]}
    start = {sequence: n for n, sequence in reversed([*enumerate(sequences)]) if sequence in videos}
    by_video = [start.get(sequences[n], first) for n, first in pairs]
    together = sum(size for size in Counter(by_video).values() if size > 1)
    for groups in (by_video, firsts):
        if len(set(groups)) >= _MIN_GROUPS:
            divided = 0 if groups == by_video else together
            return {name: names[first] for name, first in zip(names, groups, strict=True)}, divided
    return {}, together


def _fingerprint_of(file: Path) -> Fingerprint | None:
    try:
        return fingerprint(read_image(file))
    except DataError:
        return None
