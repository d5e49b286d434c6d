"""Timing of trained models."""

import re

import pytest

from benchmarks.models import trained_models as program
from detlite.checkpoint.files import Checkpoint, save_checkpoint
from detlite.data import DataError
from detlite.modeling.build import build_model


def test_models_are_timed_on_the_same_images(tiny_config, make_coco_dataset, tmp_path, capsys):
    cfg = tiny_config("MODEL.DEVICE", "cpu", "INPUT.MIN_SIZE_TEST", 64)
    state = build_model(cfg).state_dict()
    files = [tmp_path / name for name in ("a.pth", "b.pth")]
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    for file in files:
        save_checkpoint(Checkpoint(file, state, categories, cfg.dump()), last=False)
    _, images = make_coco_dataset(images=4)
    options = ["--images", str(images), "--count", "2", "--rounds", "1"]
    options += ["--dtypes", "float32", "bfloat16"]
    assert program.main([*map(str, files), *options]) == 0
    out = capsys.readouterr().out
    assert "2 images, 1 rounds" in out
    for file in files:
        for dtype in ("float32", "bfloat16"):
            assert re.search(rf"{file} in {dtype}: median \d+ ms, mean \d+ ms, minimum \d+ ms", out)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="the folder contains no images"):
        program.main([str(files[0]), "--images", str(tmp_path / "empty")])
