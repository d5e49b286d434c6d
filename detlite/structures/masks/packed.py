"""Ground-truth masks as polygons and run lengths in four flat tensors, without bitmaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from detlite.structures import to_device

from .formats import Segmentation, polygons_to_rle, to_bitmap
from .rle import Counts, boundaries_of_bitmap, boundaries_of_counts, decode_frame

Rings = list[np.ndarray]  # the polygons of an instance, float64 [2 P] or [P, 2] each


@dataclass(frozen=True, eq=False)
class PackedMasks:
    """The masks of I instances of one image or a batch.

    An instance is the union of its polygons, or one RLE. Its pieces are the rings of its polygons,
    or one piece with the run boundaries of its RLE. The mask is 1 at position p = x * height + y
    of the RLE's own frame (column-major, as in COCO) if the number of run boundaries <= p is odd.

    In a batch of B images with G instances each, instance b * G + g is the g-th of image b. Padding
    has no pieces.

    Attributes:
        values: float64 `[V]`. For a polygon x1, y1, x2, y2, ... in pixels of the network's input;
            for an RLE its run boundaries.
        pieces: int64 `[Q + 1]`. Piece q is `values[pieces[q] : pieces[q + 1]]`.
        instances: int64 `[I + 1]`. Instance i has the pieces `instances[i]` to
            `instances[i + 1] - 1`.
        frames: int64 `[I, 6]` of (height, width, flip_x, flip_y, out_height, out_width), all 0 for
            polygons. An RLE has a frame of height x width. The pixel (x, y) of the network's input
            of out_height x out_width reads column s = (2x + 1) * width // (2 * out_width), or
            width - 1 - s if flip_x is 1; rows alike. This is nearest-neighbor resizing by pixel
            centers, after the flips.
    """

    values: Tensor
    pieces: Tensor
    instances: Tensor
    frames: Tensor

    @classmethod
    def from_segmentations(
        cls, segmentations: Sequence[Segmentation], height: int, width: int, as_rle: bool
    ) -> PackedMasks:
        """Pack COCO segmentations of one image: polygons, or RLEs with list or string counts.

        With `as_rle`, polygons become run lengths, as pycocotools rasterizes them at this size.

        Raises:
            ValueError: an RLE has another size, or a polygon has fewer than three points or is too
                far outside the image.
        """
        masks: list[Rings | np.ndarray] = []
        rles: dict[int, Counts] = {}
        for number, segmentation in enumerate(segmentations):
            if isinstance(segmentation, dict):
                size = list(segmentation["size"])
                if size != [height, width]:
                    raise ValueError(f"an RLE of size {size} in an image of size {[height, width]}")
            elif any(len(ring) < 6 or len(ring) % 2 for ring in segmentation):
                raise ValueError("a polygon needs the x and y of at least three points")
            elif as_rle:
                segmentation = polygons_to_rle(segmentation, height, width)
            if isinstance(segmentation, dict):
                rles[number] = segmentation["counts"]
                segmentation = []
            masks.append([np.asarray(ring, np.float64) for ring in segmentation])
        boundaries = boundaries_of_counts([*rles.values()], height * width)
        for number, edges in zip(rles, boundaries, strict=True):
            masks[number] = edges
        return pack(masks, height, width)

    @classmethod
    def from_bitmaps(cls, masks: Tensor) -> PackedMasks:
        """Pack bitmaps uint8 or bool `[I, H, W]`, nonzero inside, as run lengths on the CPU."""
        if masks.dtype not in (torch.uint8, torch.bool):
            raise TypeError(f"masks must be uint8 or bool, not {masks.dtype}")
        if masks.ndim != 3:
            raise ValueError(f"masks must be [I, H, W], not {list(masks.shape)}")
        height, width = masks.shape[1:]
        # NumPy compares bytes several times faster than bools.
        bitmaps = masks.numpy(force=True).view(np.uint8)
        return pack([boundaries_of_bitmap(bitmap != 0) for bitmap in bitmaps], height, width)

    @classmethod
    def collate(cls, masks: Sequence[PackedMasks], count: int) -> PackedMasks:
        """Pack the masks of several images, each padded to `count` instances.

        Raises:
            ValueError: an image has more instances.
        """
        padded = []
        for image in masks:
            if len(image) > count:
                raise ValueError(f"{len(image)} masks of an image do not fit into {count}")
            padded += [image, pack([[]] * (count - len(image)), 0, 0)]
        return cls.join(padded)

    @classmethod
    def join(cls, masks: Sequence[PackedMasks]) -> PackedMasks:
        """Concatenate the instances."""
        return cls(
            torch.cat([part.values for part in masks]),
            _offsets(torch.cat([part.pieces.diff() for part in masks])),
            _offsets(torch.cat([part.instances.diff() for part in masks])),
            torch.cat([part.frames for part in masks]),
        )

    def __len__(self) -> int:
        """Return the number of instances, with padding."""
        return len(self.instances) - 1

    def to(self, device: torch.device | str) -> PackedMasks:
        """Move to a device, unless it has no kernel for them, and perhaps no float64."""
        if torch.device(device).type not in ("cpu", "cuda", "meta"):
            return self
        return PackedMasks(*(to_device(t, device) for t in self.tensors()))

    def __reduce__(self) -> tuple[Any, ...]:
        # Loader processes send arrays, because each tensor would need a file descriptor, and a
        # process has few of them.
        return _from_arrays, tuple(t.numpy(force=True) for t in self.tensors())

    def select(self, keep: Tensor) -> PackedMasks:
        """Select instances of one image by bool `[I]` or by int64 indices."""
        if keep.dtype == torch.bool:
            keep = keep.nonzero()[:, 0]
        chosen, instances = _ranges(self.instances, keep)
        index, pieces = _ranges(self.pieces, chosen)
        return PackedMasks(self.values[index], pieces, instances, self.frames[keep])

    def transformed(
        self, flip_x: bool, flip_y: bool, in_size: tuple[int, int], out_size: tuple[int, int]
    ) -> PackedMasks:
        """Return the masks after their image was flipped, and then resized to (height, width).

        The coordinates of polygons change; only the frame of run lengths changes.

        Raises:
            ValueError: run lengths have another size than `in_size`, or were resized before:
                resizing to the nearest pixel twice differs from resizing once.
        """
        if not (flip_x or flip_y) and in_size == out_size:
            return self
        is_rle = self.frames[:, 0] > 0
        if (self.frames[is_rle, 4:] != torch.tensor(in_size)).any():
            raise ValueError(f"the masks do not belong to an image of size {in_size}")
        if (self.frames[is_rle, :2] != self.frames[is_rle, 4:]).any():
            raise ValueError("run lengths were resized before: flip first, and resize once")
        frames = self.frames.clone()
        frames[is_rle, 2:4] ^= torch.tensor([flip_x, flip_y], dtype=torch.int64)
        frames[is_rle, 4:] = torch.tensor(out_size)

        in_piece = self.pieces.diff()
        moves = ~is_rle.repeat_interleave(self.instances.diff()).repeat_interleave(in_piece)
        position = torch.arange(len(self.values)) - self.pieces[:-1].repeat_interleave(in_piece)
        values = self.values.clone()
        for axis, flip in ((0, flip_x), (1, flip_y)):
            selected = moves & (position % 2 == axis)
            size, new_size = in_size[1 - axis], out_size[1 - axis]
            coordinates = size - values[selected] if flip else values[selected]
            values[selected] = coordinates * (new_size / size)
        return PackedMasks(values, self.pieces, self.instances, frames)

    def bitmaps(self, height: int, width: int) -> Tensor:
        """Decode to uint8 `[I, height, width]`, for drawing and tests."""
        bitmaps = np.array([*self.each_bitmap(height, width)], np.uint8)
        return torch.from_numpy(bitmaps.reshape(-1, height, width))

    def each_bitmap(self, height: int, width: int) -> Iterator[np.ndarray]:
        """Yield each mask as uint8 `[height, width]`, the size of the run lengths' image."""
        for pieces, frame in self.pieces_and_frames():
            yield draw_pieces(pieces, frame, height, width)

    def pieces_and_frames(self) -> Iterator[tuple[list[np.ndarray], list[int]]]:
        """Yield the pieces, float64 `[n]` each, and the frame of each instance."""
        pieces = np.split(self.values.numpy(force=True), self.pieces[1:-1].tolist())
        ranges = pairwise(self.instances.tolist())
        for (first, end), frame in zip(ranges, self.frames.tolist(), strict=True):
            yield pieces[first:end], frame

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the fields in the order of the arguments of `crop_masks`."""
        return self.values, self.pieces, self.instances, self.frames


torch.export.register_dataclass(PackedMasks, serialized_type_name="detlite.PackedMasks")


def _from_arrays(*arrays: np.ndarray) -> PackedMasks:
    return PackedMasks(*map(torch.from_numpy, arrays))


def draw_pieces(
    pieces: Sequence[np.ndarray], frame: list[int], height: int, width: int
) -> np.ndarray:
    """Draw the pieces of an instance as uint8 `[height, width]`, the size of the image."""
    if frame[0]:
        if frame[4:] != [height, width]:
            raise ValueError(f"a mask has size {frame[4:]}, not {[height, width]}")
        return decode_frame(pieces[0], frame)
    if not pieces:
        return np.zeros((height, width), np.uint8)
    return to_bitmap([ring.tolist() for ring in pieces], height, width)


def pack(masks: Sequence[Rings | np.ndarray], height: int, width: int) -> PackedMasks:
    """Pack the rings, or the array of run boundaries, of each instance of an image."""
    instances = [[mask] if isinstance(mask, np.ndarray) else mask for mask in masks]
    flat = [piece.reshape(-1) for pieces in instances for piece in pieces]
    is_rle = torch.tensor([isinstance(mask, np.ndarray) for mask in masks], dtype=torch.int64)
    return PackedMasks(
        torch.from_numpy(np.concatenate([np.empty(0), *flat])),
        _offsets(torch.tensor([len(piece) for piece in flat], dtype=torch.int64)),
        _offsets(torch.tensor([len(pieces) for pieces in instances], dtype=torch.int64)),
        is_rle[:, None] * torch.tensor([height, width, 0, 0, height, width]),
    )


def _offsets(lengths: Tensor) -> Tensor:
    return pad(lengths.cumsum(0), (1, 0))


def _ranges(offsets: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the concatenated indices of the chosen ranges, and their new offsets."""
    lengths = offsets.diff()[chosen]
    new = _offsets(lengths)
    shift = (offsets[:-1][chosen] - new[:-1]).repeat_interleave(lengths)
    return torch.arange(len(shift), device=shift.device) + shift, new
