"""Training batches are a pure function of seed and iteration."""

import itertools
import math
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from detlite.data.loading.loader import repeat_factors
from detlite.data.loading.samplers import TrainingBatchSampler


def batches(count, wide, batch_size, seed=0, **options):
    sampler = TrainingBatchSampler(wide, batch_size, seed, **options)
    return list(itertools.islice(sampler, count))


def test_each_epoch_is_a_permutation():
    stream = list(itertools.chain(*batches(9, [False] * 12, 4)))
    epochs = [[sample.image for sample in stream[i : i + 12]] for i in (0, 12, 24)]
    assert all(sorted(indices) == list(range(12)) for indices in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert [sample.epoch for sample in stream] == [0] * 12 + [1] * 12 + [2] * 12
    assert batches(3, [False] * 20, 4, seed=1) != batches(3, [False] * 20, 4, seed=2)
    (batch,) = batches(1, [False] * 3, 8)  # more than the dataset
    assert len(batch) == len(set(batch)) == 8


@settings(max_examples=40)
@given(
    wide=st.lists(st.booleans(), min_size=1, max_size=30),
    batch_size=st.integers(1, 5),
    seed=st.integers(0, 1000),
)
def test_batches_have_one_orientation_and_images_equal_counts(wide, batch_size, seed):
    epochs = 4
    result = batches(epochs * len(wide), wide, batch_size, seed)
    for batch in result:
        assert len(batch) == batch_size
        assert len({wide[sample.image] for sample in batch}) == 1
    seen = Counter(sample.image for sample in itertools.chain(*result))
    # Exact over a multiple of len(wide) iterations.
    assert set(seen) == set(range(len(wide)))
    assert set(seen.values()) == {epochs * batch_size}


def test_repeat_factors():
    # Category 1 is in all four images, 2 in one of them, 3 in two; the last image has none.
    labels = [{1, 2}, [1, 3, 3], {1}, {3, 1}, set()]
    factors = repeat_factors(labels, 0.8)
    assert factors.tolist() == [2.0, math.sqrt(0.8 / 0.4), 1.0, math.sqrt(0.8 / 0.4), 1.0]
    assert repeat_factors(labels, 0.1).tolist() == [1.0] * 5
    assert repeat_factors([], 0.5).shape == (0,)


FACTORS = np.array([1.0, 1.25, 1.5, 2.0, 1.0, 3.7, 1.01])


def epochs_of(factors, count, seed=0, wide=None, batch_size=3):
    """Return how often each image appears in each of the first epochs."""
    wide = wide or [False] * len(factors)
    stream = itertools.chain.from_iterable(
        TrainingBatchSampler(wide, batch_size, seed, factors=factors)
    )
    seen = [Counter() for _ in range(count)]
    for sample in itertools.takewhile(lambda sample: sample.epoch < count, stream):
        assert sample not in seen[sample.epoch]  # repeats are numbered
        seen[sample.epoch][sample] += 1
    for counts in seen:
        for image in range(len(factors)):
            own = sorted(sample.repeat for sample in counts if sample.image == image)
            assert own == list(range(len(own)))
    totals = [Counter(sample.image for sample in counts) for counts in seen]
    return np.array([[total[image] for image in range(len(factors))] for total in totals])


def test_an_epoch_rounds_each_factor_up_or_down():
    counts = epochs_of(FACTORS, 50)
    assert ((counts == np.floor(FACTORS)) | (counts == np.ceil(FACTORS))).all()
    # The number of images in epochs is the sum of the factors, up to one image.
    ends = counts.sum(axis=1).cumsum()
    assert (np.abs(ends - FACTORS.sum() * np.arange(1, 51)) <= 1).all()


def test_rounding_is_unbiased():
    first_epochs = np.array([epochs_of(FACTORS, 2, seed) for seed in range(300)])
    deviation = np.sqrt((FACTORS % 1) * (1 - FACTORS % 1) / 300)
    for counts in first_epochs.transpose(1, 0, 2):  # the first epoch of all seeds, then the second
        assert (np.abs(counts.mean(axis=0) - FACTORS) <= 4 * deviation).all()
    # The next epoch rounds other images up.
    assert (first_epochs[:, 0] != first_epochs[:, 1]).any(axis=1).mean() > 0.5


def test_repeats_are_spread_over_the_epoch():
    (batch,) = batches(1, [False] * 4, 8, seed=1, factors=np.full(4, 2.0))
    images = [sample.image for sample in batch]
    assert sorted(images) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert images != sorted(images)
    assert images[::2] != images[1::2]


@settings(max_examples=40)
@given(
    wide=st.lists(st.booleans(), min_size=1, max_size=12),
    seed=st.integers(0, 1000),
    start=st.integers(0, 60),
)
def test_repeated_batches_resume_and_are_divided(wide, seed, start):
    assert batches(9, wide, 4, seed) == batches(9, wide, 4, seed, factors=np.ones(len(wide)))
    factors = np.random.default_rng(seed).uniform(1, 4, len(wide))
    straight = batches(start + 6, wide, 4, seed, factors=factors)
    assert straight[start:] == batches(6, wide, 4, seed, start_iter=start, factors=factors)
    shares = [
        batches(start + 6, wide, 4, seed, rank=rank, world_size=2, factors=factors)
        for rank in (0, 1)
    ]
    assert [first + second for first, second in zip(*shares, strict=True)] == straight
    for batch in straight:
        assert len({wide[sample.image] for sample in batch}) == 1


def test_groups_alternate_by_their_repeated_sizes():
    wide, factors = [True, False, False], np.array([4.0, 1.0, 1.0])
    wide_batches = [wide[batch[0].image] for batch in batches(600, wide, 2, factors=factors)]
    assert sum(wide_batches) == 400


def test_distant_iterations_are_fast_with_repeats():
    (batch,) = batches(1, [False] * 7, 2, start_iter=10**9, factors=FACTORS)
    assert abs(batch[0].epoch - 2 * 10**9 / FACTORS.sum()) <= 1000
