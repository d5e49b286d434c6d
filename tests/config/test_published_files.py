"""maskrcnn-benchmark's own YAML files, where a copy is: they load unchanged, build and detect.

DETLITE_MRB_CONFIGS names the folder; https://github.com/facebookresearch/maskrcnn-benchmark has
them in `configs`.
"""

import os
from pathlib import Path

import pytest
import torch

from detlite.config import load_config
from detlite.data.datasets.builtin_entries import BUILTIN
from detlite.modeling.build import build_model

_FOLDER = Path(os.environ.get("DETLITE_MRB_CONFIGS") or "no folder is named")
_FILES = sorted(_FOLDER.rglob("*.yaml"))

pytestmark = pytest.mark.skipif(not _FILES, reason="no YAML files in DETLITE_MRB_CONFIGS")
_every_file = pytest.mark.parametrize("file", _FILES, ids=lambda f: str(f.relative_to(_FOLDER)))


@_every_file
def test_file_builds_unchanged(file):
    cfg = load_config(file, ["MODEL.DEVICE", "meta"])
    with torch.device("meta"):
        build_model(cfg)
    assert {*cfg.DATASETS.TRAIN, *cfg.DATASETS.TEST} <= BUILTIN.keys()


@_every_file
def test_narrow_version_of_file_trains_and_detects(file, train_and_detect):
    train_and_detect(file)
