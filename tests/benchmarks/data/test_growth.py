"""The benchmark of growth with small sizes."""

import json
import math

import pytest

from benchmarks.data.growth import CASES, benchmark_growth, measure, write_images
from detlite.data import CocoDataset


def test_written_dataset_is_valid(tmp_path):
    write_images(tmp_path, 12, scenes=3, objects=7)
    file, images = tmp_path / "data" / "annotations.json", tmp_path / "data" / "images"
    assert len(json.loads(file.read_text())["annotations"]) == 84
    assert len(CocoDataset(file, images)) == 12


SLOW = ("check", "predict")  # cases that take seconds start with these words


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * name.startswith(SLOW)) for name in CASES],
)
def test_every_case_is_measured(name, tmp_path, monkeypatch):
    monkeypatch.setenv("DETLITE_CACHE", "")  # measure sets it for its process
    CASES[name].write(tmp_path, 10)
    seconds, _ = measure(name, tmp_path, 10)
    assert seconds > 0


@pytest.mark.slow
def test_sizes_are_doubled_in_new_processes():
    rows = list(benchmark_growth(["later start"], 0.002))
    assert [row.size for row in rows] == [20, 40, 80, 160]
    assert math.isnan(rows[0].exponent)
    assert all(math.isfinite(row.exponent) for row in rows[1:])
