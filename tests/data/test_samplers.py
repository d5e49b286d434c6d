"""Batches of training are a pure function of seed and iteration."""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from detlite.data.samplers import TrainingBatchSampler


def batches(count, wide, batch_size, seed=0, **options):
    sampler = TrainingBatchSampler(wide, batch_size, seed, **options)
    return list(itertools.islice(sampler, count))


def test_each_round_is_a_permutation():
    stream = list(itertools.chain(*batches(9, [False] * 12, 4)))
    rounds = [[sample.image for sample in stream[i : i + 12]] for i in (0, 12, 24)]
    assert all(sorted(indices) == list(range(12)) for indices in rounds)
    assert rounds[0] != rounds[1] != rounds[2]
    assert [sample.round for sample in stream] == [0] * 12 + [1] * 12 + [2] * 12


def test_a_batch_may_be_larger_than_the_set():
    (batch,) = batches(1, [False] * 3, 8)
    assert len(batch) == len(set(batch)) == 8


@given(
    wide=st.lists(st.booleans(), min_size=1, max_size=30),
    batch_size=st.integers(1, 5),
    seed=st.integers(0, 1000),
)
def test_batches_are_of_one_kind_and_images_equally_often(wide, batch_size, seed):
    rounds = 4
    made = batches(rounds * len(wide), wide, batch_size, seed)
    for batch in made:
        assert len(batch) == batch_size
        assert len({wide[sample.image] for sample in batch}) == 1
    seen = Counter(sample.image for sample in itertools.chain(*made))
    # Exactly so: over a multiple of len(wide) iterations each group gets its share.
    assert set(seen) == set(range(len(wide)))
    assert set(seen.values()) == {rounds * batch_size}


def test_resuming_gives_the_same_batches():
    wide = [True] * 7 + [False] * 5
    straight = batches(40, wide, 4, seed=3)
    assert straight[17:] == batches(23, wide, 4, seed=3, start_iter=17)


def test_seeds_give_different_batches():
    assert batches(3, [False] * 20, 4, seed=1) != batches(3, [False] * 20, 4, seed=2)


def test_processes_share_the_batches_of_one():
    wide = [True] * 7 + [False] * 5
    alone = batches(20, wide, 4)
    shares = [batches(20, wide, 4, rank=rank, world_size=2) for rank in (0, 1)]
    assert [first + second for first, second in zip(*shares, strict=True)] == alone


def test_far_iterations_are_open_at_once():
    (batch,) = batches(1, [False] * 10, 2, start_iter=10**9)
    assert batch[0].round == 2 * 10**8
