"""The record of the latency benchmark."""

import json

import pytest

from benchmarks.latency.cases import LatencyRow
from benchmarks.latency.page import AP_FILE, page, plot_latency, read_aps

_ROWS = [
    LatencyRow("small", "float32", 1, 320, 40.0, 39.0, 5, 40),
    LatencyRow("small", "float32", 2, 512, 60.25, 59.0, 5, 38, {"backbone": 31.0}),
    LatencyRow("small", "openvino int8", 2, 512, 30.0, 29.0, 5, 40),
    LatencyRow("yolo11n-seg", "int8, predict", 2, 512, 25.0, 24.0, 5, 40),
    LatencyRow("small", "in phases, checkpoint", 2, 640, 2900.0, 2800.0, 3, 0, {"load": 700.0}),
]
_APS = {
    "small": {"box": 50.0, "mask": 51.0, "source": "a/b.md"},
    "small openvino int8": {"box": 49.0, "mask": 50.0},
}


def test_page_has_all_tables(tmp_path):
    plot_latency(_ROWS, tmp_path / "plot.png", _APS)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    text = page(_ROWS, "machine", "command", _APS, "plot.png")
    lines = text.splitlines()
    assert "| model | mode | 1 core, 320 | 2 cores, 512 | objects | box AP / mask AP |" in lines
    assert "| small | float32 | 40.0 | 60.2 | 38 to 40 | 50.0 / 51.0 |" in lines
    assert "| small | openvino int8 |  | 30.0 | 40 | 49.0 / 50.0 |" in lines
    assert "| yolo11n-seg | int8, predict |  | 25.0 | 40 |  |" in lines
    assert "| small | in phases, checkpoint | 2900 | 2800 | 700 |" in lines
    assert "[a/b.md](../a/b.md)" in text
    assert "![AP against milliseconds per image](plot.png)" in lines
    assert sum("| backbone" in line for line in lines) == 2  # phases, and published models
    assert "![" not in page(_ROWS, "machine", "command", _APS, "")


def test_shipped_aps_name_their_records(repo_root, tmp_path):
    for ap in read_aps(AP_FILE).values():
        record = (repo_root / "benchmarks" / "results" / ap["source"]).read_text()
        assert f"{ap['box']:.1f}" in record
        assert f"{ap['mask']:.1f}" in record
    file = tmp_path / "ap.json"
    file.write_text(json.dumps({"small": {"box": 3}}))
    with pytest.raises(ValueError, match=r'small needs {"box": AP, "mask": AP}'):
        read_aps(file)
