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
from detlite.data.images.sources import ImageSource
from detlite.files.errors import DataError

_MAX_BITS = 3  # differing bits, of 64, between hashes of a rescaled or recompressed image
_NOISE = 2.0  # of 255: smaller differences of neighbors, as in a dark background, set no bit
_MAX_DIFFERENCE = 4.0  # mean difference of thumbnails, of 255: smooth images can share a hash
_MAX_RATIO = 0.7  # of that difference to the contrast: dark images with few objects are alike
_LUMINANCE = torch.tensor([0.299, 0.587, 0.114])[:, None, None]  # as in gray copies of an image
_SIDE = 32  # pixels of a thumbnail
_MAX_COMPARED = 2000  # images that `split_groups` reads
_MIN_GROUPS = 5
_SEQUENCE_NUMBER = re.compile(r"\d+(?=\.\w+$)")

# A 64-bit hash, and a gray thumbnail uint8 [32, 32].
Fingerprint = tuple[int, np.ndarray]


def fingerprint(image: Tensor) -> Fingerprint:
    """Return the fingerprint of an image uint8 [C, H, W], RGB if it has three channels."""
    weights = _LUMINANCE if len(image) == 3 else 1 / len(image)
    gray = (image.float() * weights).sum(dim=0)[None, None]
    # dHash: one bit for each of 8 x 8 horizontal neighbors, set if the right one is brighter.
    small = interpolate(gray, (8, 9), mode="area")[0, 0]
    bits = (small[:, 1:] > small[:, :-1] + _NOISE).flatten().tolist()
    thumbnail = interpolate(gray, (_SIDE, _SIDE), mode="area")[0, 0]
    image_hash = sum(1 << k for k, bit in enumerate(bits) if bit)
    return image_hash, thumbnail.round().to(torch.uint8).numpy()


def similar_groups(fingerprints: Sequence[Fingerprint]) -> np.ndarray:
    """Group nearly identical images, also by others between them.

    Returns:
        For each fingerprint, the index of the first one of its group, int64 [N].
    """
    hashes = np.array([image_hash for image_hash, _ in fingerprints], np.uint64)
    thumbnails = np.array([thumbnail for _, thumbnail in fingerprints], np.float32)
    groups = np.arange(len(fingerprints))
    # Hashes that differ in at most three bits agree in at least one of their four quarters.
    for quarter in range(_MAX_BITS + 1):
        keys = (hashes >> np.uint64(16 * quarter)) & np.uint64(0xFFFF)
        order = np.argsort(keys, kind="stable")
        for bucket in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
            for k, first in enumerate(bucket[:-1].tolist()):
                others = bucket[k + 1 :]
                others = others[groups[others] != groups[first]]
                if not len(others) and (groups[bucket] == groups[first]).all():
                    break  # such as all frames of a fixed camera
                differing = (hashes[first] ^ hashes[others]).view(np.uint8).reshape(-1, 8)
                near = others[np.unpackbits(differing, axis=1).sum(axis=1) <= _MAX_BITS]
                if len(near):
                    joined = groups[[first, *_similar(first, near, thumbnails)]]
                    groups[np.isin(groups, joined)] = joined.min()
    return groups


def _similar(first: int, others: np.ndarray, thumbnails: np.ndarray) -> np.ndarray:
    """Return those of `others` whose thumbnails differ little, also relative to the contrast."""
    shown = thumbnails[first]
    contrast = float(np.abs(shown - shown.mean()).mean())
    differences = np.abs(thumbnails[others] - shown).mean(axis=(1, 2))
    return others[differences <= min(_MAX_DIFFERENCE, max(_MAX_RATIO * contrast, 1.0))]


def duplicate_groups(sources: Sequence[ImageSource]) -> list[int]:
    """Group nearly identical images; return the index of the first image of each image's group.

    An image that cannot be read is its own group.
    """
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(_fingerprint_of, sources))
    indices = np.array([index for index, one in enumerate(found) if one is not None], int)
    result = np.arange(len(found))
    result[indices] = indices[similar_groups([one for one in found if one is not None])]
    return list(result.tolist())


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


def _fingerprint_of(source: ImageSource) -> Fingerprint | None:
    try:
        return fingerprint(read_image(source))
    except DataError:
        return None
