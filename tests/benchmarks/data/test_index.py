"""The index benchmark on a small dataset."""

import json
from importlib.util import find_spec

import pytest

from benchmarks.data.index import METHODS, generate_large_dataset, measure
from detlite.data import CocoDataset


def test_generated_dataset_is_valid_and_kept(tmp_path):
    file, images = generate_large_dataset(tmp_path, 20, seed=3)
    content = json.loads(file.read_text())
    assert len(content["images"]) == 20
    assert len(content["annotations"]) > 100
    assert len(CocoDataset(file, images)) == 20
    before = file.stat().st_mtime_ns
    assert generate_large_dataset(tmp_path, 20) == (file, images)
    assert file.stat().st_mtime_ns == before


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_measured(tmp_path, method):
    if method == "hotcoco" and not find_spec("hotcoco"):
        pytest.skip("hotcoco is not installed")
    row = measure(method, generate_large_dataset(tmp_path, 20))
    assert (row.method, row.images) == (method, 20)
    assert row.cpu_seconds > 0
    assert row.peak >= 0
