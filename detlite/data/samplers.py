"""Which images make up which batch: pure functions of seed and iteration, so nothing to save."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from torch.utils.data import Sampler


class Sample(NamedTuple):
    """An image of the training set in one of its rounds, which together seed its augmentation."""

    round: int
    image: int


class TrainingBatchSampler(Sampler[list[Sample]]):
    """Infinite training batches, the same whether training ran through or was resumed.

    A batch holds only wide or only tall images, so that little of it is padding. Each of the two
    groups goes through its images in endless rounds, a new permutation each, and they take turns
    in proportion to their sizes. A batch is that of all processes together and is cut up among
    them, so their number changes neither batches nor augmentation.

    `wide` tells for each image whether it belongs to the first group; all False: no grouping.
    `batch_size` is that of all processes, a multiple of `world_size`.
    """

    def __init__(
        self,
        wide: Sequence[bool],
        batch_size: int,
        seed: int,
        start_iter: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        is_wide = np.asarray(wide, bool)
        self._wide = _Rounds(np.flatnonzero(is_wide), (seed, 0))
        self._tall = _Rounds(np.flatnonzero(~is_wide), (seed, 1))
        self._wide_count, self._count = int(is_wide.sum()), len(is_wide)
        self._phase = int(np.random.default_rng((seed, 2)).integers(self._count))
        self._start_iter = start_iter
        self._batch_size = batch_size
        share = batch_size // world_size
        self._own_places = range(rank * share, (rank + 1) * share)

    def __iter__(self) -> Iterator[list[Sample]]:
        for iteration in itertools.count(self._start_iter):
            wide_before = self._wide_turns(iteration)
            if self._wide_turns(iteration + 1) > wide_before:
                rounds, turn = self._wide, wide_before
            else:
                rounds, turn = self._tall, iteration - wide_before
            yield [rounds.sample(turn * self._batch_size + place) for place in self._own_places]

    def _wide_turns(self, iteration: int) -> int:
        """How many of the first `iteration` batches are wide: evenly spread, never random."""
        return (iteration * self._wide_count + self._phase) // self._count


class _Rounds:
    """An endless stream of images: permutation after permutation, open at any position."""

    def __init__(self, images: np.ndarray, seed: tuple[int, int]) -> None:
        self._images = images
        self._seed = seed
        # Two, as a batch may reach from one round into the next.
        self._permutation = lru_cache(maxsize=2)(self._permute)

    def sample(self, position: int) -> Sample:
        """The image at a position of the stream, from 0, and the round that it belongs to."""
        number, place = divmod(position, len(self._images))
        return Sample(number, int(self._permutation(number)[place]))

    def _permute(self, number: int) -> np.ndarray:
        return np.random.default_rng((*self._seed, number)).permutation(self._images)
