"""Every file in configs/ loads, builds and stays short."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from detlite.config import load_config
from detlite.modeling.rcnn import build_model

_CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted(_CONFIGS.rglob("*.yaml"))
LEAVES = [file for file in FILES if file.parent.name != "_base_"]
_NAMES = [file.name for file in FILES]


def test_there_are_configs():
    assert LEAVES


@pytest.mark.parametrize("file", FILES, ids=_NAMES)
def test_config_loads_and_builds(file):
    with torch.device("meta"):
        build_model(load_config(file, ["MODEL.DEVICE", "meta"]))


@pytest.mark.parametrize("file", FILES, ids=_NAMES)
def test_resolved_config_loads_again(file, tmp_path):
    cfg = load_config(file)
    (tmp_path / "config.yaml").write_text(cfg.dump())
    assert load_config(tmp_path / "config.yaml") == cfg


@pytest.mark.parametrize("file", LEAVES, ids=[file.name for file in LEAVES])
def test_data_sets_are_in_the_catalog(file):
    datasets = load_config(file).DATASETS
    known = {entry["name"] for entry in datasets.CATALOG}
    assert datasets.TRAIN
    assert {*datasets.TRAIN, *datasets.TEST} <= known


@pytest.mark.parametrize("file", LEAVES, ids=[file.name for file in LEAVES])
def test_config_states_only_what_differs(file):
    """A key that repeats its base or default only hides what matters."""

    def leaves(node, prefix=""):
        for key, value in node.items():
            if isinstance(value, dict):
                yield from leaves(value, f"{prefix}{key}.")
            else:
                yield prefix + key

    content = yaml.safe_load(file.read_text())
    base = content.pop("_BASE_", None)
    before = load_config(file.parent / base if base else None)
    after = load_config(file)
    for name in leaves(content):
        old, new = before, after
        for part in name.split("."):
            old, new = old[part], new[part]
        assert old != new, f"{name} repeats {new!r}"
