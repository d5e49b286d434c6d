"""Ground-truth masks as polygons and run lengths in four flat tensors: never as full bitmaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from .formats import Segmentation, polygons_to_rle, to_bitmap
from .rle import read_frame, toggles_of_bitmap, toggles_of_counts


@dataclass(frozen=True, eq=False)
class PackedMasks:
    """The masks of the I instances of one image, or of a batch.

    An instance is the union of its polygons, or one RLE. Its pieces are the rings of its polygons,
    or one piece with all toggles of its RLE. A toggle is a cumulated run end: the mask is 1 at the
    flat position p = x * height + y of the RLE's own frame (column by column, as COCO counts) if
    and only if an odd number of toggles is <= p.

    In a batch of B images with G instances each, instance b * G + g is the g-th of image b. Padding
    has no pieces.

    Attributes:
        values: float64 [V]. Of a polygon x1, y1, x2, y2, ... in pixels of the network's input; of
            an RLE its toggles.
        pieces: int64 [Q + 1]. Piece q is `values[pieces[q] : pieces[q + 1]]`.
        instances: int64 [I + 1]. Instance i has the pieces `instances[i]` to
            `instances[i + 1] - 1`.
        frames: int64 [I, 6] of (height, width, flip_x, flip_y, out_height, out_width), all 0 for
            polygons. An RLE lies in a frame of height x width. The pixel (x, y) of the network's
            input, out_height x out_width, reads column s = (2x + 1) * width // (2 * out_width), or
            width - 1 - s where flip_x is 1; rows alike. This is nearest resizing by pixel centres,
            after the flips.
    """

    values: Tensor
    pieces: Tensor
    instances: Tensor
    frames: Tensor

    @classmethod
    def from_segmentations(
        cls, segmentations: Sequence[Segmentation], height: int, width: int, as_runs: bool
    ) -> PackedMasks:
        """COCO segmentations of one picture: polygons, or RLEs whose counts are a list or a string.

        Args:
            segmentations: I of them, sound (see `detlite.data.datasets.coco_checks`).
            height, width: the picture's size in pixels.
            as_runs: make run lengths of polygons as well, exactly as pycocotools draws them at the
                picture's size.

        Raises:
            ValueError: an RLE of another size, or a polygon of fewer than three points or too far
                out of the picture.
        """
        pieces = []
        for segmentation in segmentations:
            if isinstance(segmentation, dict):
                size = list(segmentation["size"])
                if size != [height, width]:
                    raise ValueError(f"an RLE of size {size} in a picture of {[height, width]}")
            elif any(len(ring) < 6 or len(ring) % 2 for ring in segmentation):
                raise ValueError("a polygon needs x and y of at least three points")
            elif as_runs:
                segmentation = polygons_to_rle(segmentation, height, width)
            if isinstance(segmentation, dict):
                pieces.append([toggles_of_counts(segmentation["counts"], height * width)])
            else:
                pieces.append([np.asarray(ring, np.float64) for ring in segmentation])
        is_rle = [as_runs or isinstance(one, dict) for one in segmentations]
        return pack_pieces(pieces, is_rle, height, width)

    @classmethod
    def from_bitmaps(cls, masks: Tensor) -> PackedMasks:
        """Masks uint8 or bool [I, H, W], not 0 inside, as run lengths on the CPU.

        Raises:
            TypeError, ValueError: a tensor of another type or shape.
        """
        if masks.dtype not in (torch.uint8, torch.bool):
            raise TypeError(f"masks must be uint8 or bool, not {masks.dtype}")
        if masks.ndim != 3:
            raise ValueError(f"masks must be [I, H, W], not {list(masks.shape)}")
        height, width = masks.shape[1:]
        # As bytes, which numpy compares several times as fast as bools.
        bitmaps = masks.view(torch.uint8).numpy(force=True)
        toggles = [[toggles_of_bitmap(bitmap != 0)] for bitmap in bitmaps]
        return pack_pieces(toggles, [True] * len(toggles), height, width)

    @classmethod
    def collate(cls, masks: Sequence[PackedMasks], count: int) -> PackedMasks:
        """The masks of one or more images as a batch, each image padded to `count` instances.

        Raises:
            ValueError: an image has more instances.
        """
        padded = []
        for one in masks:
            missing = count - len(one)
            if missing < 0:
                raise ValueError(f"{len(one)} masks of an image do not fit into {count}")
            instances = pad(one.instances, (0, missing), value=int(one.instances[-1]))
            frames = pad(one.frames, (0, 0, 0, missing))
            padded.append(cls(one.values, one.pieces, instances, frames))
        return cls.join(padded)

    @classmethod
    def join(cls, masks: Sequence[PackedMasks]) -> PackedMasks:
        """The instances of all of them, one after the other."""
        return cls(
            torch.cat([one.values for one in masks]),
            _offsets(torch.cat([one.pieces.diff() for one in masks])),
            _offsets(torch.cat([one.instances.diff() for one in masks])),
            torch.cat([one.frames for one in masks]),
        )

    def __len__(self) -> int:
        """I, with padding."""
        return len(self.instances) - 1

    def to(self, device: torch.device | str, non_blocking: bool = False) -> PackedMasks:
        """The same on another device; or where they are, if that has no float64, as MPS."""
        if not _has_float64(torch.device(device).type):
            return self
        return PackedMasks(*(t.to(device, non_blocking=non_blocking) for t in self.tensors()))

    def pin_memory(self) -> PackedMasks:
        """The same in page-locked memory; torch's DataLoader calls it."""
        return PackedMasks(*(t.pin_memory() for t in self.tensors()))

    def __reduce__(self) -> tuple[Any, ...]:
        # As arrays through the pipe of a loader process: every tensor would take one of the few
        # file descriptors that a process may have open.
        return _from_arrays, tuple(t.numpy(force=True) for t in self.tensors())

    def select(self, keep: Tensor) -> PackedMasks:
        """Some instances of one image: `keep` is bool [I], or int64 indices of instances."""
        if keep.dtype == torch.bool:
            keep = keep.nonzero()[:, 0]
        chosen, instances = _ranges(self.instances, keep)
        index, pieces = _ranges(self.pieces, chosen)
        return PackedMasks(self.values[index], pieces, instances, self.frames[keep])

    def transformed(
        self, flip_x: bool, flip_y: bool, in_size: tuple[int, int], out_size: tuple[int, int]
    ) -> PackedMasks:
        """What they are after their image was flipped, and then resized.

        Polygons move by their coordinates, run lengths by their frame.

        Args:
            flip_x, flip_y: left and right, or top and bottom change places.
            in_size, out_size: (height, width) of the image before and after.

        Raises:
            ValueError: run lengths that do not belong to an image of `in_size`, or that were
                resized before: nearest resizing twice is not nearest resizing once.
        """
        if not (flip_x or flip_y) and in_size == out_size:
            return self
        is_rle = self.frames[:, 0] > 0
        if (self.frames[is_rle, 4:] != torch.tensor(in_size)).any():
            raise ValueError(f"masks that do not belong to an image of size {in_size}")
        if (self.frames[is_rle, :2] != self.frames[is_rle, 4:]).any():
            raise ValueError("masks of run lengths were resized before; flip first, resize once")
        frames = self.frames.clone()
        frames[is_rle, 2:4] ^= torch.tensor([flip_x, flip_y], dtype=torch.int64)
        frames[is_rle, 4:] = torch.tensor(out_size)

        in_piece = self.pieces.diff()
        moves = ~is_rle.repeat_interleave(self.instances.diff()).repeat_interleave(in_piece)
        place = torch.arange(len(self.values)) - self.pieces[:-1].repeat_interleave(in_piece)
        values = self.values.clone()
        for axis, flip in ((0, flip_x), (1, flip_y)):
            own = moves & (place % 2 == axis)
            size, new_size = in_size[1 - axis], out_size[1 - axis]
            coordinates = size - values[own] if flip else values[own]
            values[own] = coordinates * (new_size / size)
        return PackedMasks(values, self.pieces, self.instances, frames)

    def bitmaps(self, height: int, width: int) -> Tensor:
        """uint8 [I, height, width], for drawing and tests: training needs none."""
        bitmaps = np.array([*self.each_bitmap(height, width)], np.uint8)
        return torch.from_numpy(bitmaps.reshape(-1, height, width))

    def each_bitmap(self, height: int, width: int) -> Iterator[np.ndarray]:
        """One after the other, uint8 [height, width] of 0 and 1 in an image of that size.

        Raises ValueError for run lengths that belong to an image of another size.
        """
        for index, (own, frame) in enumerate(self.pieces_and_frames()):
            if frame[0] > 0:
                if frame[4:] != [height, width]:
                    raise ValueError(f"mask {index} has size {frame[4:]}, not {[height, width]}")
                yield read_frame(own[0], frame)
            else:
                rings = [ring.tolist() for ring in own]
                empty = np.zeros((height, width), np.uint8)
                yield to_bitmap(rings, height, width) if rings else empty

    def pieces_and_frames(self) -> Iterator[tuple[list[np.ndarray], list[int]]]:
        """Of each instance its pieces float64 [n], and its frame."""
        pieces = np.split(self.values.numpy(force=True), self.pieces[1:-1].tolist())
        places = pairwise(self.instances.tolist())
        for (first, end), frame in zip(places, self.frames.tolist(), strict=True):
            yield pieces[first:end], frame

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The fields, in the order in which `crop_masks` takes them."""
        return self.values, self.pieces, self.instances, self.frames


torch.export.register_dataclass(PackedMasks, serialized_type_name="detlite.PackedMasks")


@cache
def _has_float64(kind: str) -> bool:
    if kind in ("cpu", "cuda", "meta"):
        return True
    try:
        torch.zeros(1, dtype=torch.float64, device=kind)
    except (TypeError, RuntimeError):
        return False
    return True


def _from_arrays(*arrays: np.ndarray) -> PackedMasks:
    return PackedMasks(*map(torch.from_numpy, arrays))


def pack_pieces(
    pieces: Sequence[list[np.ndarray]], is_rle: Sequence[bool], height: int, width: int
) -> PackedMasks:
    """Instances from their pieces in an image of that size, as `PackedMasks` describes them."""
    flat = [piece for own in pieces for piece in own]
    frame = torch.tensor([height, width, 0, 0, height, width])
    return PackedMasks(
        torch.from_numpy(np.concatenate([np.empty(0), *flat])),
        _offsets(torch.tensor([len(piece) for piece in flat], dtype=torch.int64)),
        _offsets(torch.tensor([len(own) for own in pieces], dtype=torch.int64)),
        torch.tensor(is_rle, dtype=torch.int64)[:, None] * frame,
    )


def _offsets(lengths: Tensor) -> Tensor:
    return pad(lengths.cumsum(0), (1, 0))


def _ranges(offsets: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The indices in the chosen ranges, one range after the other, and the new offsets."""
    lengths = offsets.diff()[chosen]
    new = _offsets(lengths)
    shift = (offsets[:-1][chosen] - new[:-1]).repeat_interleave(lengths)
    return torch.arange(len(shift), device=shift.device) + shift, new
