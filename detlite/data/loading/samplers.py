"""Choose the images of each batch: pure functions of seed and iteration, without state to save."""

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from torch.utils.data import Sampler

# Repeat factors are integer multiples of 1 / _UNIT, so that their sums are exact.
_UNIT = 1 << 20


class Sample(NamedTuple):
    """An appearance of a training image. The fields seed its augmentation.

    `epoch` counts passes through the dataset, and `repeat` earlier appearances in the epoch.
    """

    epoch: int
    image: int
    repeat: int = 0


class TrainingBatchSampler(Sampler[list[Sample]]):
    """Endless training batches that are the same for uninterrupted and resumed runs.

    A batch has only wide or only tall images, to save padding. Each of the two groups passes
    through its images in epochs, in a new random order each, and the groups take turns in
    proportion to their sizes. A batch is divided among all processes, so their number changes
    neither batches nor augmentation.

    Args:
        wide: for each image, True if it belongs to the first group; all False: no grouping.
        batch_size: over all processes, a multiple of `world_size`.
        factors: how often each image appears in an epoch on average, see `repeat_factors`; each
            epoch rounds it up or down randomly. None: once.
    """

    def __init__(
        self,
        wide: Sequence[bool],
        batch_size: int,
        seed: int,
        start_iter: int = 0,
        rank: int = 0,
        world_size: int = 1,
        factors: np.ndarray | None = None,
    ) -> None:
        is_wide = np.asarray(wide, bool)
        count = len(is_wide)
        weights = np.full(count, _UNIT)
        if factors is not None:
            weights = np.rint(factors * _UNIT).astype(np.int64)
        self._wide, self._tall = (
            _Epochs(np.flatnonzero(members), weights[members], (seed, group))
            for group, members in enumerate((is_wide, ~is_wide))
        )
        self._total = self._wide.total + self._tall.total
        self._phase = int(np.random.default_rng((seed, 2)).integers(count)) * self._total // count
        self._start_iter = start_iter
        self._batch_size = batch_size
        part = batch_size // world_size
        self._positions = range(rank * part, (rank + 1) * part)

    def __iter__(self) -> Iterator[list[Sample]]:
        for iteration in itertools.count(self._start_iter):
            wide_before = self._wide_batches(iteration)
            if self._wide_batches(iteration + 1) > wide_before:
                epochs, batch = self._wide, wide_before
            else:
                epochs, batch = self._tall, iteration - wide_before
            start = batch * self._batch_size
            yield [epochs.sample(start + position) for position in self._positions]

    def _wide_batches(self, iteration: int) -> int:
        """Return the number of wide batches before `iteration`: evenly spread, not random."""
        return (iteration * self._wide.total + self._phase) // self._total


class _Epochs:
    """An endless stream of images, permutation after permutation, with access at any position.

    An image of weight w appears w / _UNIT times in an epoch, rounded up or down. The weights of a
    random order are segments on a line, and marks at every multiple of _UNIT select the image
    below. The marks continue evenly from epoch to epoch, so the position where an epoch starts is
    known without the epochs before it. The first mark is random, so the rounding is unbiased.
    """

    def __init__(self, images: np.ndarray, weights: np.ndarray, seed: tuple[int, int]) -> None:
        self.total = int(weights.sum())
        self._images, self._weights, self._seed = images, weights, seed
        self._phase = int(np.random.default_rng((*seed, 0, 0)).integers(_UNIT))
        # Two epochs, because a batch can continue into the next one.
        self._epoch = lru_cache(maxsize=2)(self._draw)

    def sample(self, position: int) -> Sample:
        epoch = ((position + 1) * _UNIT - self._phase - 1) // self.total
        image, repeat = self._epoch(epoch)[position - self._start(epoch)].tolist()
        return Sample(epoch, image, repeat)

    def _start(self, epoch: int) -> int:
        return (self._phase + epoch * self.total) // _UNIT

    def _draw(self, epoch: int) -> np.ndarray:
        """Draw the images of an epoch with the number of earlier appearances: integers [N, 2]."""
        rng = np.random.default_rng((*self._seed, epoch))
        order = rng.permutation(len(self._images))
        first_mark = (self._phase + epoch * self.total) % _UNIT
        ends = (first_mark + self._weights[order].cumsum()) // _UNIT
        counts = np.diff(ends, prepend=0)
        position = np.repeat(np.arange(len(order)), counts)
        repeat = np.arange(len(position)) - (ends - counts)[position]
        if counts.max() > 1:  # otherwise the order is random already
            shuffled = rng.permutation(len(position))
            position, repeat = position[shuffled], repeat[shuffled]
        return np.stack([self._images[order[position]], repeat], axis=1)
