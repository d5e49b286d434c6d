"""What a chosen config trains: datasets whose rare objects differ from the others."""

from pathlib import Path

import numpy as np
import pytest

from detlite.apps.autoconfig.dataset_facts import BASE, DatasetFacts
from detlite.apps.autoconfig.rules import choose
from detlite.apps.autoconfig.simulation import lost_objects
from detlite.config import config_from

from .builders import from_rows

# Images as (number, height, width, objects), and objects as (category, number in each image,
# smallest width, largest width, height / width).
DATASETS = {
    "sizes": [(20, 500, 500, [(0, 5, 20, 40, 1)]), (20, 4000, 4000, [(0, 20, 20, 40, 1)])],
    "rare sizes": [(90, 500, 500, [(0, 5, 20, 40, 1)]), (10, 4000, 4000, [(1, 5, 20, 40, 1)])],
    "large in tiles": [(10, 2000, 2000, [(0, 20, 15, 20, 1), (1, 5, 900, 1500, 1)])],
    "larger than tiles": [(9, 4000, 4000, [(0, 1, 3000, 3900, 1), (1, 300, 10, 12, 1)])],
    "long": [(20, 200, 4000, [(0, 20, 20, 60, 1)])],
    "very long": [(20, 100, 20_000, [(0, 30, 20, 90, 1)])],
    "very high": [(20, 20_000, 100, [(0, 30, 60, 95, 1)])],
    "some are long": [(60, 480, 640, [(0, 5, 30, 200, 1)]), (6, 200, 4000, [(1, 5, 60, 150, 1)])],
    "poles": [(50, 480, 640, [(0, 20, 30, 200, 1)]), (6, 480, 640, [(1, 2, 20, 30, 12)])],
    "huge": [(50, 480, 640, [(0, 40, 15, 30, 1)]), (2, 480, 640, [(1, 1, 440, 470, 1)])],
    "one image": [(1, 480, 640, [(0, 4, 30, 200, 1)])],
    "few in huge images": [(30, 4000, 4000, [(0, 1, 20, 40, 1)])],
    "whole images": [(30, 480, 640, [(0, 1, 480, 480, 1)])],
}


def statistics(images, names=("a", "b")):
    rng = np.random.default_rng(0)
    sizes, rows = [], []
    for count, height, width, objects in images:
        for _ in range(count):
            for label, number, low, high, ratio in objects:
                w = np.exp(rng.uniform(np.log(low), np.log(high), number))
                h = np.minimum(w * ratio, height)
                x, y = rng.uniform(0, width - w), rng.uniform(0, height - h)
                owner = np.full(number, len(sizes))
                rows.append(np.stack([owner, np.full(number, label), x, y, w, h], axis=1))
            sizes.append((height, width))
    return from_rows(sizes, np.concatenate(rows), names)


def chosen(facts, *opts):
    values = dict(zip(opts[::2], opts[1::2], strict=True))
    choices = {choice.key: choice.value for choice in choose(facts, values)}
    return config_from(choices | {"MODEL.WEIGHT": ""}, Path("test"), opts, BASE)


@pytest.mark.parametrize("name", DATASETS)
def test_rules_lose_no_category_and_no_size(cpu, gpu, name):
    for machine in (cpu, gpu):
        facts = DatasetFacts(statistics(DATASETS[name]), None, machine)
        assert lost_objects(chosen(facts), facts) == []


@pytest.mark.parametrize(
    ("name", "opts", "problem"),
    [
        ("some are long", ("INPUT.MAX_SIZE_TEST", 4000), "b: trained at"),
        ("few in huge images", ("INPUT.MIN_SIZE_TEST", 640), "a: half of the objects have sides"),
        ("huge", ("MODEL.RPN.ANCHOR_SIZES", (16, 20, 24, 28, 32)), "b: only 0% of the objects fit"),
        ("huge", ("INPUT.MIN_AREA", 4000), "a: 2000 of 2000 objects are never trained"),
    ],
)
def test_settings_that_lose_objects_are_named(cpu, name, opts, problem):
    facts = DatasetFacts(statistics(DATASETS[name]), None, cpu)
    assert any(line.startswith(problem) for line in lost_objects(chosen(facts, *opts), facts))


@pytest.mark.parametrize(("small", "problems"), [(9, 0), (10, 1)])
def test_a_few_objects_of_a_size_are_no_problem(cpu, small, problems):
    rows = [(20, 480, 640, [(0, 14, 60, 200, 1)]), (small, 480, 640, [(0, 1, 20, 30, 1)])]
    facts = DatasetFacts(statistics(rows), None, cpu)
    lines = lost_objects(chosen(facts, "MODEL.RPN.ANCHOR_SIZES", (80, 90, 100, 110, 120)), facts)
    assert sum(line.startswith("below 32 pixels: only 0%") for line in lines) == problems


def test_categories_of_the_evaluation_set_only_and_many_problems(cpu):
    val = statistics([(3, 480, 640, [(1, 2, 30, 60, 1)])])
    facts = DatasetFacts(statistics(DATASETS["one image"]), val, cpu)
    assert lost_objects(chosen(facts), facts) == [
        "b: no training image shows one, so it is evaluated (6) but not trained"
    ]
    rows = [(20, 480, 640, [(k, 1, 30, 60, 1) for k in range(30)])]
    facts = DatasetFacts(statistics(rows, [f"c{k}" for k in range(30)]), None, cpu)
    *lines, last = lost_objects(chosen(facts, "MODEL.RPN.ANCHOR_SIZES", (500,) * 5), facts)
    assert (len(lines), last) == (20, "and 12 more")


@pytest.mark.parametrize(
    ("specks", "expected"),
    [((10, 0, 2, 1, 3, 1), True), ((10, 0, 2, 20, 60, 1), False), ((10, 1, 2, 1, 3, 1), False)],
    ids=["specks", "no gap", "a category"],
)
def test_specks_do_not_decide(cpu, specks, expected):
    rows = [(40, 640, 640, [(0, 8, 60, 200, 1)])]
    plain = DatasetFacts(statistics(rows), None, cpu)
    with_specks = DatasetFacts(statistics([*rows, (specks[0], 640, 640, [specks[1:]])]), None, cpu)
    cfg, other = chosen(plain), chosen(with_specks)
    assert cfg.INPUT.MIN_AREA == 0
    assert (other.INPUT.MIN_AREA > 0) == expected
    if expected:
        assert other.INPUT.MIN_AREA == 64
        assert other.MODEL.RPN.ANCHOR_SIZES == cfg.MODEL.RPN.ANCHOR_SIZES
        assert other.INPUT.MIN_SIZE_TEST == cfg.INPUT.MIN_SIZE_TEST
