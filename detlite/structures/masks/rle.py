"""Run lengths of COCO's RLE read without a bitmap, and the toggles that `PackedMasks` holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Counts = str | bytes | Sequence[int]


@dataclass(frozen=True, eq=False)
class EncodedMasks:
    """N compressed RLEs in three arrays: a hundred thousand masks as three objects.

    Attributes:
        data: uint8 [V], their counts as COCO writes them, end to end.
        lengths: int64 [N], how many bytes of `data` each has.
        sizes: int64 [N, 2], (height, width) of each.
    """

    data: np.ndarray
    lengths: np.ndarray
    sizes: np.ndarray

    @classmethod
    def from_rles(cls, rles: Sequence[dict[str, Any]]) -> EncodedMasks:
        """RLEs {"size": [height, width], "counts": str or bytes}."""
        counts = [rle["counts"] for rle in rles]
        texts = [text.encode("ascii") if isinstance(text, str) else text for text in counts]
        return cls(
            data=np.frombuffer(bytearray().join(texts), np.uint8),
            lengths=np.array([len(text) for text in texts], np.int64),
            sizes=np.array([rle["size"] for rle in rles], np.int64).reshape(-1, 2),
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def rles(self, first: int = 0, last: int | None = None) -> Iterator[dict[str, Any]]:
        """The RLEs from number `first` to before `last`, with counts as str."""
        begin = int(self.lengths[:first].sum())
        for length, size in zip(
            self.lengths[first:last].tolist(), self.sizes[first:last].tolist(), strict=True
        ):
            text = self.data[begin : begin + length].tobytes().decode("ascii")
            yield {"size": size, "counts": text}
            begin += length


def run_lengths(counts: Counts) -> np.ndarray:
    """The runs of an RLE, int64: how many 0, then how many 1, and so on, column by column.

    A compressed string has five bits to a character from '0' on, lowest first, and a sixth bit
    while more follow. Numbers are signed; from the fourth on, each is the difference to the last
    but one (cocoapi, rleToString).

    Raises:
        ValueError: a string that is no such code. Negative runs are not noticed.
    """
    if not isinstance(counts, (str, bytes)):
        return np.array(counts, np.int64)
    text = counts.encode() if isinstance(counts, str) else counts
    codes = np.frombuffer(text, np.uint8).astype(np.int64) - ord("0")
    ends = np.flatnonzero(codes & 0x20 == 0)
    starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
    sizes = ends - starts + 1
    # Seven characters hold any run of a picture, and their sums do not overflow.
    if ((codes < 0) | (codes > 63)).any() or sizes.sum() != len(codes) or (sizes > 7).any():
        raise ValueError("RLE counts that are not run lengths")
    if not len(ends):
        return ends
    shifts = 5 * (np.arange(len(codes)) - np.repeat(starts, sizes))
    runs = np.add.reduceat((codes & 0x1F) << shifts, starts)
    runs -= np.where(codes[ends] & 0x10, 1 << 5 * sizes, 0)
    runs[1::2] = runs[1::2].cumsum()
    runs[2::2] = runs[2::2].cumsum()
    return runs


def toggles_of_counts(counts: Counts, pixels: int) -> np.ndarray:
    """The toggles float64 of an RLE over so many pixels: where its runs end, but for the last."""
    ends = run_lengths(counts).cumsum()
    return ends[ends < pixels].astype(np.float64)


def toggles_of_bitmap(inside: np.ndarray) -> np.ndarray:
    """The toggles float64 of a bool [H, W]: positions at which it differs from the one before."""
    used = used_columns(inside)
    # With the column behind, in which a mask that reaches the last row ends.
    part = inside[:, used.start : used.stop + 1]
    changes = np.empty_like(part)
    changes[1:] = part[1:] != part[:-1]
    changes[0, 1:] = part[0, 1:] != part[-1, :-1]
    changes[0, :1] = part[0, :1]
    # Of one dimension, which numpy searches several times as fast.
    rows, columns = np.divmod(np.flatnonzero(changes), part.shape[1] or 1)
    return np.sort((columns + used.start) * len(part) + rows).astype(np.float64)


def used_columns(bitmap: np.ndarray) -> slice:
    """From the first to the last column of [H, W] that has a pixel; an empty slice for none."""
    columns = np.flatnonzero(bitmap.any(axis=0))
    return slice(int(columns[0]), int(columns[-1]) + 1) if len(columns) else slice(0, 0)


def read_frame(
    toggles: np.ndarray,
    frame: Sequence[int],
    window: tuple[int, int, int, int] | None = None,
) -> np.ndarray:
    """The bitmap of toggles in a frame, see `PackedMasks`.

    Args:
        toggles: float64, in order.
        frame: (height, width, flip_x, flip_y, out_height, out_width).
        window: (top, left, bottom, right) of the part that is wanted; None: all of it.

    Returns:
        uint8 [bottom - top, right - left].
    """
    height, width, flip_x, flip_y, out_height, out_width = frame
    top, left, bottom, right = window or (0, 0, out_height, out_width)
    columns = (2 * np.arange(left, right) + 1) * width // (2 * out_width)
    rows = (2 * np.arange(top, bottom) + 1) * height // (2 * out_height)
    columns = width - 1 - columns if flip_x else columns
    rows = height - 1 - rows if flip_y else rows
    bitmap = np.zeros((len(columns), len(rows)), np.uint8)
    if len(toggles):
        # Only the columns and rows between the first and the last pixel of the mask.
        edges = toggles.astype(np.int64)
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
