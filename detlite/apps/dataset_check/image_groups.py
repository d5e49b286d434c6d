"""Decide which images belong together: a training and an evaluation set must not share a group."""

import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from detlite.files.errors import DataError

from .fingerprints import compare, connect, nearly_identical

# Kinds of images that belong together, with the words for one of them and several.
IDENTICAL, _SEQUENCE = "nearly identical images", "consecutive frames or slices"
_COPIES, _TILES, _GIVEN = "augmented copies", "tiles of larger images", "images grouped by {}"
# Roboflow writes a_jpg.rf.HASH.jpg for each augmented copy of a.jpg.
_COPY = re.compile(r"\.rf\.[0-9A-Za-z]{8,}$")
# SAHI writes a_X1_Y1_X2_Y2.png for tiles of a.png, and DOTA's tools a__SCALE__X___Y.png.
_CORNERS = re.compile(r"(.+?)[_-](\d+)[_-](\d+)[_-](\d+)[_-](\d+)$")
_POSITION = re.compile(r"(.+?)[_-]+x?(\d+)[_-]+y?(\d+)$")
_NUMBER = re.compile(r"([0-9]{1,18})")
_MIN_STEP = 16  # pixels between tiles: smaller numbers in names are not positions
_MAX_STRETCH = 0.02  # relative difference of the shapes of a tile and of its corners
# Folders that do not tell one sequence of names from another.
_NO_SEQUENCE = {"train", "val", "valid", "validation", "test", "images"}
# Images are a sequence if most neighbors in the order of names are more alike than nearly all
# pairs of distant ones, or have an almost equal thumbnail that distant ones do not have.
_CLOSEST, _PAIRS, _MIN_OFFSET, _MIN_IMAGES = 0.05, 2000, 5, 12
_ALMOST_EQUAL, _FRACTION = 0.05, 0.25
_MAX_FRACTION = 0.4  # of the images; if all groups are larger, they are cut into _PARTS
_PARTS = 5


@dataclass(frozen=True)
class ImageGroups:
    """Groups of N images that should be on the same side of a split.

    Attributes:
        labels: int64 [N], index of the first image of each image's group.
        kinds: the groups for each reason, as `labels`.
        cut: True if all groups are too large, so that they are cut into consecutive parts.
    """

    labels: np.ndarray
    kinds: Mapping[str, np.ndarray]
    cut: bool = False

    def __str__(self) -> str:
        """Describe the groups in a sentence."""
        found = [
            f"{count} {kind}"
            for kind, labels in self.kinds.items()
            if (count := int((np.bincount(labels)[labels] > 1).sum()))
        ]
        if not found:
            return f"none of {len(self.labels)} images resembles another one"
        listed = " and ".join([", ".join(found[:-1])] * (len(found) > 1) + found[-1:])
        if not self.cut:
            return f"{listed} stay together"
        return (
            f"{listed} are few large groups, so all are cut into {_PARTS} consecutive parts. "
            "Images at the borders resemble trained ones, so metrics are too high: choose others "
            "by `detlite init --val`"
        )


def group_images(
    rows: Sequence[Mapping[str, Any]], prints: np.ndarray, group_by: str | None = None
) -> ImageGroups:
    """Group images that show the same: nearly identical ones, frames, slices, copies and tiles.

    Names of copies and of tiles decide alone, if the images have the shapes of such tiles. Numbers
    in names are frames or slices only if neighbors look alike. The time is linear in the number of
    images, apart from sorting.

    Args:
        rows: images [N] of a COCO file.
        prints: their fingerprints [N].
        group_by: a member of all `rows`, or a pattern of their names, with the value that images
            of a group share, such as a patient; None: numbers in names are examined instead.

    Raises:
        DataError: `group_by` fits no image, not all of them, or makes a single group.
    """
    stems = [posixpath.splitext(row["file_name"])[0] for row in rows]
    sources = [_COPY.sub("", stem) for stem in stems]
    copies = (
        posixpath.basename(source) if source != stem else None
        for source, stem in zip(sources, stems, strict=True)
    )
    tiles = _tiles(sources, rows)
    firm = {_COPIES: same_values(copies), _TILES: same_values(tiles)}
    if group_by:
        kind = _GIVEN.format(group_by)
        firm = {kind: same_values(_given_values(rows, group_by))} | firm
    alike = {IDENTICAL: nearly_identical(prints)}
    keys = [_sequence_key(tile or source) for tile, source in zip(tiles, sources, strict=True)]
    order = sorted(range(len(rows)), key=keys.__getitem__)
    if not group_by:
        alike[_SEQUENCE] = _sequences(keys, prints)
    kinds = alike | firm
    labels, cut = _joined(kinds.values(), len(rows)), False
    if _are_large(labels):
        whole = _joined(firm.values(), len(rows))
        if _are_large(whole) and not group_by:
            whole = np.arange(len(rows))
        parts = _consecutive_parts(whole, order)
        if len(np.unique(parts)) > len(np.unique(labels)):
            labels, cut = parts, True
    return ImageGroups(labels, kinds, cut)


def _joined(parts: Iterable[np.ndarray], count: int) -> np.ndarray:
    labels = np.arange(count)
    for part in parts:
        connect(labels, np.arange(count), part)
    return labels


def _are_large(labels: np.ndarray) -> bool:
    """Return True if no group is small enough for evaluation."""
    sizes = np.unique(labels, return_counts=True)[1]
    return bool((sizes > max(_MAX_FRACTION * len(labels), 1)).all())


def _consecutive_parts(whole: np.ndarray, order: Sequence[int]) -> np.ndarray:
    """Cut images in this order into _PARTS labels, without cutting the groups of `whole`."""
    part = np.zeros(len(whole), np.int64)
    part[list(order)] = np.arange(len(whole)) * _PARTS // len(whole)
    return same_values(part[whole].tolist())


def same_values(values: Iterable[Any]) -> np.ndarray:
    """Return for each value the index of the first equal one; None equals no other."""
    first: dict[Any, int] = {}
    indices = (n if value is None else first.setdefault(value, n) for n, value in enumerate(values))
    return np.fromiter(indices, np.int64)


def _given_values(rows: Sequence[Mapping[str, Any]], group_by: str) -> list[Any]:
    """Return the value of each image that --group-by names. Raises DataError."""
    values = [row.get(group_by) for row in rows]
    if all(value is None for value in values):
        try:
            found = [re.search(group_by, row["file_name"]) for row in rows]
        except re.error as error:
            raise DataError(
                f"--group-by {group_by}: is not a regular expression: {error}"
            ) from error
        values = [match and (match.groups() or match[0]) for match in found]
    missing = [row["file_name"] for row, value in zip(rows, values, strict=True) if value is None]
    if missing:
        raise DataError(
            f"--group-by {group_by}: {len(missing)} of {len(rows)} images have no such member in "
            f"the annotation file, and names that the pattern does not match, such as {missing[0]}"
        )
    values = [str(value) for value in values]
    if len({*values}) == 1:
        raise DataError(f"--group-by {group_by}: all images have the value {values[0]}")
    return values


def _tiles(sources: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """Return the name of the larger image of each tile; None for images that are no tiles."""
    found: list[str | None] = [None] * len(rows)
    positions: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for n, (source, row) in enumerate(zip(sources, rows, strict=True)):
        name = posixpath.basename(source)
        if match := _CORNERS.match(name):
            left, top, right, bottom = map(int, match.groups()[1:])
            expected, actual = (right - left) * row["height"], (bottom - top) * row["width"]
            if min(expected, actual) > 0 and abs(expected / actual - 1) <= _MAX_STRETCH:
                found[n] = match[1]
        elif match := _POSITION.match(name):
            positions[match[1]].append((int(match[2]), int(match[3]), n))
    for name, tiles in positions.items():
        numbers = {number for x, y, _ in tiles for number in (x, y)}
        if {(0, 0)} < {(x, y) for x, y, _ in tiles} and min(numbers - {0}) >= _MIN_STEP:
            for _, _, n in tiles:
                found[n] = name
    return found


def _sequence_key(source: str) -> tuple[Any, ...]:
    """Return a key that sorts numbers in names by value: (folder, texts, numbers)."""
    *folders, name = source.split("/")
    folder = tuple(part for part in folders if part.lower() not in _NO_SEQUENCE)
    parts = _NUMBER.split(name)
    return folder, tuple(parts[::2]), tuple(map(int, parts[1::2]))


def _sequences(keys: Sequence[tuple[Any, ...]], prints: np.ndarray) -> np.ndarray:
    """Group the frames or slices that follow each other in the order of names and look alike."""
    labels, count = np.arange(len(keys)), len(keys)
    if count < _MIN_IMAGES:
        return labels
    orders: tuple[Callable[[int], Any], ...] = (
        lambda n: keys[n],
        lambda n: (*keys[n][:2], keys[n][2][::-1]),  # such as the frame before the camera
    )
    for key in orders:
        order = np.array(sorted(range(count), key=key))
        rng, tried = np.random.default_rng(0), min(count, _PAIRS)
        starts = rng.integers(count, size=tried)
        ends = starts + rng.integers(_MIN_OFFSET, count - _MIN_OFFSET + 1, size=tried)
        far = np.nan_to_num(compare(prints, order[starts], order[ends % count])[1], nan=1.0)
        limit = max(np.quantile(far, _CLOSEST), min(_ALMOST_EQUAL, _FRACTION * np.median(far)))
        first, second = order[:-1], order[1:]
        known = prints["known"][first] & prints["known"][second]
        alike = known & (compare(prints, first, second)[1] < limit)
        texts, videos, frames = (
            same_values([part(key(n)) for n in order.tolist()])
            for part in (lambda k: k[:2], lambda k: (*k[:2], k[2][:-1]), lambda k: k)
        )

        # Frames of a video that look different belong to it, unless it may have several scenes.
        short = (np.bincount(videos) <= _MAX_FRACTION * count)[videos[:-1]]
        differ = frames[:-1] != frames[1:]
        used = _of_sequences(texts, differ, alike) & alike
        used |= _of_sequences(videos, differ, alike) & short
        connect(labels, first[used], second[used])
    return labels


def _of_sequences(ids: np.ndarray, differ: np.ndarray, alike: np.ndarray) -> np.ndarray:
    """Return bool [N - 1]: neighbors with the same id [N], if most of those are alike."""
    pairs = (ids[:-1] == ids[1:]) & differ
    total = np.bincount(ids[:-1], pairs, len(ids))
    most = 2 * np.bincount(ids[:-1], pairs & alike, len(ids)) > np.maximum(total, 2)
    return np.asarray(pairs & most[ids[:-1]])
