"""Which images make up which batch: pure functions of seed and iteration, so nothing to save."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from torch.utils.data import Sampler

# Repeat factors are counted in parts of it, so that their sums are exact.
_WHOLE = 1 << 20


class Sample(NamedTuple):
    """An image of the training set in one of its rounds, which together seed its augmentation.

    `repeat` counts its appearances within the round, from 0.
    """

    round: int
    image: int
    repeat: int = 0


def repeat_factors(labels: Sequence[Collection[int]], threshold: float) -> np.ndarray:
    """How often each image is to appear in a round, so that rare categories are seen more often.

    A category that is in a fraction f of the images asks for max(1, sqrt(threshold / f)), an image
    for the most that one of its categories asks for (LVIS, arXiv 1908.03195, appendix B.2).

    Args:
        labels: the categories of each image; a repeated one counts once.
        threshold: t, a fraction of the images; LVIS's baselines take 0.001.

    Returns:
        float64 [images], at least 1.
    """
    own = [set(found) for found in labels]
    images = Counter(category for found in own for category in found)
    factor = {
        category: max(1.0, math.sqrt(threshold * len(own) / count))
        for category, count in images.items()
    }
    return np.array([max((factor[one] for one in found), default=1.0) for found in own])


class TrainingBatchSampler(Sampler[list[Sample]]):
    """Infinite training batches, the same whether training ran through or was resumed.

    A batch holds only wide or only tall images, so that little of it is padding. Each of the two
    groups goes through its images in endless rounds, a new permutation each, and they take turns
    in proportion to their sizes. A batch is that of all processes together and is cut up among
    them, so their number changes neither batches nor augmentation.

    Where pictures lie in shards, a round goes through the shards in random order, and through each
    in its own; then images change places with those near them alone, so that a shard is read in
    sequence. Both groups take the shards in the same order, at the same pace.

    Args:
        wide: for each image whether it belongs to the first group; all False: no grouping.
        batch_size: that of all processes, a multiple of `world_size`.
        factors: how often each image appears in a round on average, see `repeat_factors`; each
            round rounds it up or down by chance. None: once.
        shards: int64 [images], the shard of each, never decreasing; None: there are none.
        window: how many images, one after another, are shuffled among themselves, under `shards`.
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
        shards: np.ndarray | None = None,
        window: int = 1,
    ) -> None:
        is_wide = np.asarray(wide, bool)
        count = len(is_wide)
        weights = np.full(count, _WHOLE)
        if factors is not None:
            weights = np.rint(factors * _WHOLE).astype(np.int64)
        self._wide, self._tall = (
            _Rounds(
                np.flatnonzero(own),
                weights[own],
                (seed, group),
                None if shards is None else _Shards(seed, shards, own, window),
            )
            for group, own in ((0, is_wide), (1, ~is_wide))
        )
        self._total = self._wide.total + self._tall.total
        self._phase = int(np.random.default_rng((seed, 2)).integers(count)) * self._total // count
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
        return (iteration * self._wide.total + self._phase) // self._total


class _Shards:
    """The order in which a group of images is read from shards."""

    def __init__(self, seed: int, shards: np.ndarray, own: np.ndarray, window: int) -> None:
        self._seed, self._window = seed, window
        self._count = int(shards[-1]) + 1
        self._shards = shards[own]

    def order(self, number: int) -> np.ndarray:
        """The places of the images in a round: shard by shard, int64 [N]."""
        rank = np.random.default_rng((self._seed, 3, number)).permutation(self._count)
        return np.argsort(rank[self._shards], kind="stable")

    def shuffled(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """A permutation, int64 [count], of which each element is less than `window` off."""
        place = np.arange(count) + rng.integers(self._window)
        return np.argsort(place // self._window + rng.random(count))


class _Rounds:
    """An endless stream of images: permutation after permutation, open at any position.

    An image of weight w appears in a round w / _WHOLE times, rounded up or down: the weights of
    a random order lie end to end on a line, from which every _WHOLE-th mark takes the image under
    it. The marks go on evenly from round to round, so that the place where a round begins is known
    without those before it; the first lies at random, so that each image is rounded without bias.
    """

    def __init__(
        self,
        images: np.ndarray,
        weights: np.ndarray,
        seed: tuple[int, int],
        shards: _Shards | None,
    ) -> None:
        self.total = int(weights.sum())
        self._shards = shards
        self._images, self._weights, self._seed = images, weights, seed
        self._phase = int(np.random.default_rng((*seed, 0, 0)).integers(_WHOLE))
        # Two, as a batch may reach from one round into the next.
        self._round = lru_cache(maxsize=2)(self._draw)

    def sample(self, position: int) -> Sample:
        """The image at a position of the stream, from 0, and the round that it belongs to."""
        number = ((position + 1) * _WHOLE - self._phase - 1) // self.total
        image, repeat = self._round(number)[position - self._start(number)].tolist()
        return Sample(number, image, repeat)

    def _start(self, number: int) -> int:
        return (self._phase + number * self.total) // _WHOLE

    def _draw(self, number: int) -> np.ndarray:
        """The images of a round, and which appearance in it each is: integers [N, 2]."""
        rng = np.random.default_rng((*self._seed, number))
        if self._shards is None:
            order = rng.permutation(len(self._images))
        else:
            order = self._shards.order(number)
        first_mark = (self._phase + number * self.total) % _WHOLE
        ends = (first_mark + self._weights[order].cumsum()) // _WHOLE
        counts = np.diff(ends, prepend=0)
        place = np.repeat(np.arange(len(order)), counts)
        repeat = np.arange(len(place)) - (ends - counts)[place]
        shuffled = None
        if self._shards is not None:
            shuffled = self._shards.shuffled(rng, len(place))
        elif counts.max() > 1:  # else it is in random order already
            shuffled = rng.permutation(len(place))
        if shuffled is not None:
            place, repeat = place[shuffled], repeat[shuffled]
        return np.stack([self._images[order[place]], repeat], axis=1)
