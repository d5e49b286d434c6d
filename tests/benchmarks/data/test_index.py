from __future__ import annotations

import json

import pytest
from benchmarks.data.loading.index import WAYS, large_set, measure

from detlite.data import CocoDataset


def test_the_set_is_sound_and_is_kept(tmp_path):
    file, pictures = large_set(tmp_path, 20, seed=3)
    content = json.loads(file.read_text())
    assert len(content["images"]) == 20
    assert len(content["annotations"]) > 100
    assert len(CocoDataset(file, pictures)) == 20
    before = file.stat().st_mtime_ns
    assert large_set(tmp_path, 20) == (file, pictures)
    assert file.stat().st_mtime_ns == before


@pytest.mark.parametrize("way", WAYS)
def test_every_way_is_measured(tmp_path, way):
    row = measure(way, WAYS[way], large_set(tmp_path, 20), batches=4, loaders=1)
    assert (row.way, row.images) == (way, 20)
    assert row.cpu_seconds > 0
    assert 0 <= row.peak < row.first_all
    assert row.last_all > 0
