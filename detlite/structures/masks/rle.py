"""COCO's run-length encoding, and the run boundaries that `PackedMasks` stores.

A run boundary is the position at which a run ends and the next one starts, in column-major order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Counts = str | bytes | Sequence[int]

_MAX_CHARACTERS = 7  # of a run length, so that sums do not overflow
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
        data, lengths = join_strings([rle["counts"] for rle in rles])
        sizes = np.array([rle["size"] for rle in rles], np.int64).reshape(-1, 2)
        return cls(data, lengths, sizes)

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

    @cached_property
    def areas(self) -> np.ndarray:
        """The pixels of each mask, int64 [N]; -1 if its run lengths do not cover its size."""
        ends, areas = self.lengths.cumsum(), np.full(len(self), -1)
        first = 0
        while first < len(self):  # limits the memory
            begin = int(ends[first] - self.lengths[first])
            last = max(first + 1, int(np.searchsorted(ends, begin + _CHARACTERS_PER_STEP)))
            part = slice(first, last)
            text, pixels = self.data[begin : int(ends[last - 1])], self.sizes[part].prod(axis=1)
            runs, counts, valid = decode_runs(text, self.lengths[part])
            inside, total, negative = sum_runs(runs, counts)
            areas[part] = np.where(valid & ~negative & (total == pixels), inside, -1)
            first = last
        return areas


def run_lengths(counts: Counts) -> np.ndarray:
    """Return the runs of an RLE, see `run_lengths_of`."""
    return run_lengths_of([counts])[0]


def run_lengths_of(masks: Sequence[Counts]) -> list[np.ndarray]:
    """Return the runs of RLEs, int64: the lengths of runs of 0 and 1 in turn, column by column.

    Raises:
        ValueError: a string is not such an encoding. Negative runs are not detected.
    """
    coded = [counts if isinstance(counts, (str, bytes)) else b"" for counts in masks]
    runs, numbers, valid = decode_runs(*join_strings(coded))
    if not valid.all():
        raise ValueError("the RLE counts are not run lengths")
    decoded = np.split(runs, numbers.cumsum())[:-1]
    return [
        own if isinstance(counts, (str, bytes)) else np.array(counts, np.int64)
        for counts, own in zip(masks, decoded, strict=True)
    ]


def join_strings(strings: Sequence[str | bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of strings, uint8 [V], and the number of bytes of each, int64 [N]."""
    texts = [s.encode("utf-8", "surrogatepass") if isinstance(s, str) else s for s in strings]
    lengths = np.array([len(text) for text in texts], np.int64)
    return np.frombuffer(bytearray().join(texts), np.uint8), lengths


def decode_runs(data: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Decode the runs of N compressed RLEs, the concatenated strings uint8 [V] of lengths [N].

    A character of a string is '0' plus five bits, lowest first, and a sixth bit if more characters
    of the number follow. Numbers are signed. From the fourth number on, the difference from the
    number before the previous one is stored (cocoapi, rleToString).

    Returns:
        The runs of all strings, int64 [R]; their number for each string, int64 [N]; and bool [N],
        True for strings that are such an encoding. Others have no runs.
    """
    codes, stops = data - np.uint8(ord("0")), lengths.cumsum()
    is_end = codes & 0x20 == 0
    last = stops[lengths > 0] - 1
    truncated = last[~is_end[last]]
    is_end[last] = True
    ends = np.flatnonzero(is_end)  # of each number
    sizes = np.diff(ends, prepend=-1)
    broken = np.concatenate([np.flatnonzero(codes > 63), truncated, ends[sizes > _MAX_CHARACTERS]])
    bad = np.zeros(len(lengths), bool)
    bad[np.searchsorted(stops, broken, "right")] = True
    if bad.any():
        kept = np.where(bad, 0, lengths)
        return *decode_runs(data[np.repeat(~bad, lengths)], kept)[:2], ~bad
    runs = (codes[ends] & 0x1F) - 2 * (codes[ends] & 0x10).astype(np.int64)
    for step in range(1, sizes.max(initial=1)):  # most numbers have one or two characters
        longer = np.flatnonzero(sizes > step)
        runs[longer] = runs[longer] << 5 | codes[ends[longer] - step] & 0x1F
    counts = np.diff(np.searchsorted(ends, stops), prepend=0)
    # Sum every second number of each string, without its first one.
    starts = counts.cumsum() - counts
    background, first = runs[starts[counts > 0]], np.repeat(starts, counts)
    sums = np.zeros(len(runs) + 2, np.int64)
    for side in (0, 1):
        runs[side::2].cumsum(out=sums[2 + side :: 2])
    runs = sums[2:] - sums[first + 2 - (np.arange(len(runs)) - first) % 2]
    runs[starts[counts > 0]] = background
    return runs, counts, ~bad


def sum_runs(runs: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sum the runs [R] of N masks; each mask has the next `counts` [N].

    Returns:
        The pixels in the mask and all pixels, float64 [N], which cannot overflow; and bool [N],
        True if a run is negative.
    """
    owners = np.repeat(np.arange(len(counts)), counts)
    is_inside = (np.arange(len(runs)) - np.repeat(counts.cumsum() - counts, counts)) % 2 == 1
    lengths = runs.astype(np.float64)
    inside = np.bincount(owners, np.where(is_inside, lengths, 0), len(counts))
    negative = np.bincount(owners[runs < 0], minlength=len(counts)) > 0
    return inside, np.bincount(owners, lengths, len(counts)), negative


def draw_rle(counts: Counts, height: int, width: int) -> np.ndarray:
    """Draw an RLE as a bitmap uint8 `[height, width]`.

    Raises:
        ValueError: the counts are not run lengths, or exceed the bitmap.
    """
    runs = run_lengths(counts)
    pixels = runs.sum(dtype=np.float64)  # cannot overflow
    if (runs < 0).any() or pixels > height * width:
        raise ValueError(f"the RLE counts cover {pixels:.0f} pixels of {height * width}")
    edges = runs.cumsum()
    return decode_frame(edges[: len(edges) // 2 * 2], (height, width, 0, 0, height, width))


def boundaries_of_counts(masks: Sequence[Counts], pixels: int) -> list[np.ndarray]:
    """Return the run boundaries, float64, of RLEs of an image with this number of pixels."""
    ends = [runs.cumsum() for runs in run_lengths_of(masks)]
    return [of_mask[of_mask < pixels].astype(np.float64) for of_mask in ends]


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
    edges = boundaries.astype(np.int64)
    edges = edges if len(edges) % 2 == 0 else np.append(edges, height * width)
    if len(edges):
        used = (columns >= edges[0] // height) & (columns * height < edges[-1])
        if used.any():
            # Draw only the columns that are read.
            first, last = columns[used].min(), columns[used].max()
            start, end = first * height, (last + 1) * height
            runs = np.diff(edges.clip(start, end), prepend=start, append=end)
            bits = np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(-1, height)
            part = bits.take(columns[used] - first, axis=0).take(rows, axis=1, mode="clip")
            part[:, (rows < 0) | (rows >= height)] = False  # the window may exceed the frame
            bitmap[used] = part
    return bitmap.T
