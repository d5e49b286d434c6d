"""Keep decoded training images in memory that all loader processes share (DATALOADER.CACHE)."""

import logging
import mmap
import multiprocessing
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from yacs.config import CfgNode

from detlite.data.datasets.options import GIGABYTE

from .batch_loader import worker_count

logger = logging.getLogger(__name__)


class ImageMemory:
    """Decoded images, each in its place in one block of shared memory.

    The system provides the memory of an image when it is written. Processes share the block if
    they are started by fork. Two of them may decode the same image at the same time, and then
    write the same bytes.

    Args:
        sizes: (height, width) of each image.
        channels: of each image.
        limit: number of bytes; the first images that fit are kept.

    Attributes:
        count: number of images that have a place.
        size: bytes of all places.
    """

    def __init__(self, sizes: Sequence[tuple[int, int]], channels: int, limit: int) -> None:
        ends = np.cumsum([channels * height * width for height, width in sizes])
        self.count = int(np.searchsorted(ends, limit, side="right"))
        self.size = int(ends[self.count - 1]) if self.count else 0
        self._starts = np.concatenate([[0], ends])
        self._pixels = np.frombuffer(mmap.mmap(-1, max(self.size, 1)), np.uint8)
        # [H, W, C] of each image that is kept, otherwise zeros.
        shapes = mmap.mmap(-1, max(self.count, 1) * 3 * 4)
        self._shapes = np.frombuffer(shapes, np.int32).reshape(-1, 3)

    def get(self, index: int, read: Callable[[], Tensor]) -> Tensor:
        """Return image `index`, uint8 [C, H, W], which `read` decodes if it is not kept yet."""
        if index >= self.count:
            return read()
        start, shape = int(self._starts[index]), self._shapes[index].tolist()
        if all(shape):
            place = self._pixels[start : start + int(np.prod(shape))]
            return torch.from_numpy(place.reshape(shape).copy()).permute(2, 0, 1)
        image = read()
        rows = image.permute(1, 2, 0).numpy()
        if rows.size <= self._starts[index + 1] - start:
            self._pixels[start : start + rows.size].reshape(rows.shape)[...] = rows
            self._shapes[index] = rows.shape  # only now, because other processes read it
        return image


def build_image_memory(
    cfg: CfgNode, sizes: Sequence[tuple[int, int]], channels: int
) -> ImageMemory | None:
    """Create the memory for training images of these sizes; None if processes cannot share it."""
    limit = cfg.DATALOADER.CACHE
    if worker_count(cfg) and multiprocessing.get_start_method() != "fork":
        logger.warning(
            "DATALOADER.CACHE has no effect with loader processes on this system, because they are "
            "not started by fork and share no memory: set it to 0, or DATALOADER.NUM_WORKERS to 0"
        )
        return None
    memory = ImageMemory(sizes, channels, int(limit * GIGABYTE))
    total = channels * sum(height * width for height, width in sizes)
    logger.info(
        "DATALOADER.CACHE %g: %d of %d images, %.2f of %.2f GiB, stay decoded in memory",
        limit, memory.count, len(sizes), memory.size / GIGABYTE, total / GIGABYTE,
    )  # fmt: skip
    return memory
