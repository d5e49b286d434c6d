"""Test errors for files of other programs that are given as configs."""

import pytest

from detlite.config import ConfigError, load_config
from detlite.config.files import recognize


@pytest.mark.parametrize(
    ("content", "program"),
    [
        ({"VERSION": 2, "MODEL": {}}, "detectron2"),
        ({"MODEL": {"PROPOSAL_GENERATOR": {"NAME": "RPN"}}}, "detectron2"),
        ({"names": ["a"], "nc": 1}, "YOLO's data.yaml"),
        ({"epochs": 100, "imgsz": 640}, "ultralytics"),
        ({"images": [], "annotations": []}, "an annotation file"),
        ({"MODEL": {"WEIGHT": "x"}, "SOLVR": {}}, ""),
        ({"MODEL": None, 3: 4}, ""),
    ],
)
def test_recognize(content, program):
    actual = recognize(content)
    assert program in actual
    assert bool(actual) is bool(program)


def test_only_the_file_with_the_unknown_key_is_recognized(tmp_path):
    (tmp_path / "base.yaml").write_text("SOLVR: {MAX_ITER: 3}")
    (tmp_path / "mine.yaml").write_text("_BASE_: base.yaml\nVERSION: 2")
    with pytest.raises(ConfigError, match=r"base\.yaml: unknown config key SOLVR\.MAX_ITER \("):
        load_config(tmp_path / "mine.yaml")
