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
    changes = np.empty_like(inside)
    changes[1:] = inside[1:] != inside[:-1]
    changes[0, 1:] = inside[0, 1:] != inside[-1, :-1]
    changes[0, :1] = inside[0, :1]
    # Of one dimension, which numpy searches several times as fast.
    rows, columns = np.divmod(np.flatnonzero(changes), inside.shape[1])
    return np.sort(columns * len(inside) + rows).astype(np.float64)


def read_frame(toggles: np.ndarray, frame: Sequence[int]) -> np.ndarray:
    """The bitmap uint8 [out_height, out_width] of toggles in a frame, see `PackedMasks`."""
    height, width, flip_x, flip_y, out_height, out_width = frame
    changes = np.bincount(toggles.astype(np.int64), minlength=height * width)
    bitmap = (changes.cumsum() % 2).astype(np.uint8).reshape(width, height).T
    columns = (2 * np.arange(out_width) + 1) * width // (2 * out_width)
    rows = (2 * np.arange(out_height) + 1) * height // (2 * out_height)
    columns = width - 1 - columns if flip_x else columns
    rows = height - 1 - rows if flip_y else rows
    return bitmap[rows[:, None], columns]
