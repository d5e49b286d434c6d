"""COCO's run-length encoding, and the run boundaries that `PackedMasks` stores.

A run boundary is the position at which a run ends and the next one starts, in column-major order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Counts = str | bytes | Sequence[int]

_MAX_CHARACTERS = 7  # of a run length, whose sums do not overflow
_CHARACTERS_PER_STEP = 1 << 16


@dataclass(frozen=True, eq=False)
class EncodedMasks:
    """N compressed RLEs in three arrays, because 100,000 masks are too many Python objects."""

    data: np.ndarray  # uint8 [V], the concatenated COCO strings
    lengths: np.ndarray  # int64 [N], the number of bytes of each string
    sizes: np.ndarray  # int64 [N, 2], (height, width) of each mask

    @classmethod
    def from_rles(cls, rles: Sequence[dict[str, Any]]) -> EncodedMasks:
        """Pack RLEs {"size": [height, width], "counts": str or bytes}."""
        counts = [rle["counts"] for rle in rles]
        texts = [text.encode("ascii") if isinstance(text, str) else text for text in counts]
        return cls(
            data=np.frombuffer(bytearray().join(texts), np.uint8),
            lengths=np.array([len(text) for text in texts], np.int64),
            sizes=np.array([rle["size"] for rle in rles], np.int64).reshape(-1, 2),
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: np.ndarray) -> EncodedMasks:
        """Return the masks at `index`, int64 [M]."""
        lengths, text = self.lengths[index], self.data.data
        starts = (self.lengths.cumsum() - self.lengths)[index]
        spans = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
        data = bytearray().join([text[start:end] for start, end in spans])
        return EncodedMasks(np.frombuffer(data, np.uint8), lengths, self.sizes[index])

    def rles(self, first: int = 0, last: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the RLEs `first` to `last - 1`, with counts as str."""
        lengths, begin = self.lengths[first:last], int(self.lengths[:first].sum())
        ends = lengths.cumsum()
        text = self.data[begin : begin + int(lengths.sum())].tobytes().decode("ascii")
        spans = (ends - lengths).tolist(), ends.tolist(), self.sizes[first:last].tolist()
        for start, end, size in zip(*spans, strict=True):
            yield {"size": size, "counts": text[start:end]}

    def areas(self) -> np.ndarray:
        """Count the pixels of each mask, int64 [N]; -1 if its run lengths do not cover its size."""
        ends, areas = self.lengths.cumsum(), np.full(len(self), -1)
        first = 0
        while first < len(self):  # limits the memory
            begin = int(ends[first] - self.lengths[first])
            last = max(first + 1, int(np.searchsorted(ends, begin + _CHARACTERS_PER_STEP)))
            part = slice(first, last)
            text, pixels = self.data[begin : int(ends[last - 1])], self.sizes[part].prod(axis=1)
            areas[part] = _count_pixels(text, self.lengths[part], pixels)
            first = last
        return areas


def _count_pixels(text: np.ndarray, lengths: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    """Return the areas of masks like `EncodedMasks.areas`, given their strings and image areas."""
    codes = text.astype(np.int64) - ord("0")
    owners = np.repeat(np.arange(len(lengths)), lengths)  # the mask of each character
    is_end, is_last = codes & 0x20 == 0, np.diff(owners, append=-1) != 0
    bad = (codes < 0) | (codes > 63) | (is_last & ~is_end)
    ends = np.flatnonzero(is_end | is_last)
    starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
    sizes, masks = ends - starts + 1, owners[ends]  # of each number
    bad[ends[sizes > _MAX_CHARACTERS]] = True
    shifts = 5 * np.minimum(np.arange(len(codes)) - np.repeat(starts, sizes), _MAX_CHARACTERS)
    runs = np.add.reduceat((codes & 0x1F) << shifts, starts) if len(starts) else starts
    runs = runs - np.where(codes[ends] & 0x10, 1 << 5 * np.minimum(sizes, _MAX_CHARACTERS), 0)
    numbers = np.bincount(masks, minlength=len(lengths))
    first = np.repeat(numbers.cumsum() - numbers, numbers)
    rank = np.arange(len(runs)) - first
    for parity, begin in ((1, 1), (0, 2)):  # the numbers that are sums, see `run_lengths`
        summed = (rank & 1 == parity) & (rank >= begin)  # none is the first of its mask
        sums = np.where(summed, runs, 0).cumsum()
        runs = np.where(summed, sums - sums[first], runs)
    bad[ends[runs < 0]] = True
    count = len(lengths)
    covered = np.bincount(masks, runs, count) == pixels
    areas = np.bincount(masks, np.where(rank & 1, runs, 0), count).astype(np.int64)
    return np.where(covered & (np.bincount(owners[bad], minlength=count) == 0), areas, -1)


def run_lengths(counts: Counts) -> np.ndarray:
    """Decode the runs of an RLE, int64: the lengths of runs of 0 and 1 in turn, column by column.

    A character of a compressed string is '0' plus five bits, lowest first, and a sixth bit if more
    characters of the number follow. Numbers are signed. From the fourth number on, the difference
    from the number before the previous one is stored (cocoapi, rleToString).

    Raises:
        ValueError: the string is not such an encoding. Negative runs are not detected.
    """
    if not isinstance(counts, (str, bytes)):
        return np.array(counts, np.int64)
    text = counts.encode() if isinstance(counts, str) else counts
    codes = np.frombuffer(text, np.uint8).astype(np.int64) - ord("0")
    ends = np.flatnonzero(codes & 0x20 == 0)
    starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
    sizes = ends - starts + 1
    is_valid = sizes.sum() == len(codes) and sizes.max(initial=0) <= _MAX_CHARACTERS
    if ((codes < 0) | (codes > 63)).any() or not is_valid:
        raise ValueError("the RLE counts are not run lengths")
    if not len(ends):
        return ends
    shifts = 5 * (np.arange(len(codes)) - np.repeat(starts, sizes))
    runs = np.add.reduceat((codes & 0x1F) << shifts, starts)
    runs -= np.where(codes[ends] & 0x10, 1 << 5 * sizes, 0)
    runs[1::2] = runs[1::2].cumsum()
    runs[2::2] = runs[2::2].cumsum()
    return runs


def decode_all(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Decode the runs of M compressed RLEs, see `run_lengths`.

    Returns:
        The runs of all texts, int64 [R]; their number for each text, int64 [M]; and bool [M], True
        for texts that are such an encoding. Others have no runs.
    """
    coded = [text.encode("utf-8", "surrogatepass") for text in texts]
    lengths = np.array([len(text) for text in coded], np.int64)
    codes = np.frombuffer(b"".join(coded), np.uint8).astype(np.int64) - ord("0")
    owners = np.repeat(np.arange(len(coded)), lengths)
    bad = np.zeros(len(coded), bool)
    bad[owners[(codes < 0) | (codes > 63)]] = True
    full = np.flatnonzero(lengths)
    bad[full[codes[lengths.cumsum()[full] - 1] & 0x20 > 0]] = True  # the last number is truncated
    ends = np.flatnonzero(codes & 0x20 == 0)
    starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
    sizes = ends - starts + 1
    bad[owners[ends[sizes > 7]]] = True
    if bad.any():
        valid = ["" if is_bad else text for text, is_bad in zip(texts, bad, strict=True)]
        return *decode_all(valid)[:2], ~bad
    if not len(ends):
        return ends, lengths, ~bad
    shifts = 5 * (np.arange(len(codes)) - np.repeat(starts, sizes))
    runs = np.add.reduceat((codes & 0x1F) << shifts, starts)
    runs -= np.where(codes[ends] & 0x10, 1 << 5 * sizes, 0)
    owners = owners[ends]
    counts = np.bincount(owners, minlength=len(coded))
    index = np.arange(len(runs)) - np.repeat(counts.cumsum() - counts, counts)
    for parity in (0, 1):  # sums over every second number of each text
        chosen = (index % 2 == parity) & (index > 0)
        sums, text = np.append(0, runs[chosen].cumsum()), owners[chosen]
        runs[chosen] = sums[1:] - sums[np.searchsorted(text, text)]
    return runs, counts, ~bad


def draw_runs(bitmap: np.ndarray, counts: Counts) -> None:
    """Set the pixels of an RLE in a bitmap `[H, W]` of zeros. Skips the empty columns around it.

    Raises:
        ValueError: the counts are not run lengths, or exceed the bitmap.
    """
    runs, height = run_lengths(counts), len(bitmap)
    pixels = runs.sum(dtype=np.float64)  # cannot overflow
    if (runs < 0).any() or pixels > bitmap.size:
        raise ValueError(f"the RLE counts cover {pixels:.0f} pixels of {bitmap.size}")
    runs = runs[: len(runs) // 2 * 2]
    if len(runs):
        left, end = runs[0] // height, runs.sum()
        right = -(-end // height)
        runs = np.append(runs, right * height - end)  # to the last row
        runs[0] -= left * height
        bits = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
        bitmap[:, left:right] = bits.reshape(-1, height).T


def boundaries_of_counts(counts: Counts, pixels: int) -> np.ndarray:
    """Return the run boundaries, float64, of the RLE of an image with this number of pixels."""
    ends = run_lengths(counts).cumsum()
    return ends[ends < pixels].astype(np.float64)


def boundaries_of_bitmap(inside: np.ndarray) -> np.ndarray:
    """Return the run boundaries, float64, of a bool bitmap `[H, W]`."""
    used = used_columns(inside)
    # Include the next column: the last run ends there if it reaches the last row.
    part = inside[:, used.start : used.stop + 1]
    changes = np.empty_like(part)
    changes[1:] = part[1:] != part[:-1]
    changes[0, 1:] = part[0, 1:] != part[-1, :-1]
    changes[0, :1] = part[0, :1]
    # NumPy searches flat arrays several times faster.
    rows, columns = np.divmod(np.flatnonzero(changes), part.shape[1] or 1)
    return np.sort((columns + used.start) * len(part) + rows).astype(np.float64)


def used_columns(bitmap: np.ndarray) -> slice:
    """Return the slice from the first to the last non-empty column of a bitmap `[H, W]`."""
    columns = np.flatnonzero(bitmap.any(axis=0))
    return slice(int(columns[0]), int(columns[-1]) + 1) if len(columns) else slice(0, 0)


def tight_bounds(bitmap: np.ndarray) -> tuple[int, int, int, int]:
    """Return the (left, top, right, bottom) of the set pixels of a bitmap `[H, W]`; 0 if none."""
    columns = used_columns(bitmap)
    rows = used_columns(bitmap[:, columns].T)
    return columns.start, rows.start, columns.stop, rows.stop


def decode_frame(
    boundaries: np.ndarray, frame: Sequence[int], window: tuple[int, int, int, int] | None = None
) -> np.ndarray:
    """Decode sorted run boundaries in a frame to a uint8 bitmap, see `PackedMasks`.

    `window` is the part to decode, (top, left, bottom, right); None: the whole frame.
    """
    height, width, flip_x, flip_y, out_height, out_width = frame
    top, left, bottom, right = window or (0, 0, out_height, out_width)
    columns = (2 * np.arange(left, right) + 1) * width // (2 * out_width)
    rows = (2 * np.arange(top, bottom) + 1) * height // (2 * out_height)
    columns = width - 1 - columns if flip_x else columns
    rows = height - 1 - rows if flip_y else rows
    bitmap = np.zeros((len(columns), len(rows)), np.uint8)
    if len(boundaries):
        # Search only between the first and the last pixel of the mask.
        edges = boundaries.astype(np.int64)
        first = edges[0::2]
        last = np.append(edges[1::2], height * width)[: len(first)] - 1
        used = (columns >= first[0] // height) & (columns <= last[-1] // height)
        top, bottom = (first % height).min(), (last % height).max()
        if (first // height != last // height).any():  # a run from one column into the next
            top, bottom = 0, height - 1
        seen = (rows >= top) & (rows <= bottom)
        positions = columns[used, None] * height + rows[seen]
        bitmap[np.ix_(used, seen)] = np.searchsorted(edges, positions, side="right") % 2
    return bitmap.T
