"""Test that every file in configs/ loads, builds, detects and has no redundant keys."""

import os
from pathlib import Path

import pytest
import torch
import yaml
from yacs.config import CfgNode

from detlite.config import load_config
from detlite.config.loading import flatten
from detlite.data.datasets.builtin_entries import BUILTIN
from detlite.modeling.build import build_model

_CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted(_CONFIGS.rglob("*.yaml"))
LEAVES = [file for file in FILES if file.parent.name != "_base_"]


def _name(file: Path) -> str:
    return str(file.relative_to(_CONFIGS))


_every_leaf = pytest.mark.parametrize("file", LEAVES, ids=_name)
_FAST = {
    "cascade_mask_rcnn_R_50_FPN_1x", "fast_rcnn_R_50_FPN_1x", "faster_rcnn_R_50_C4_1x",
    "keypoint_rcnn_R_50_FPN_1x", "mask_rcnn_R_50_FPN_GN_1x", "mask_rcnn_fbnet",
    "nuclei_mask_rcnn_R_18_FPN", "retinanet_R_50_FPN_1x", "rpn_R_50_FPN_1x",
}  # fmt: skip


def _needs_its_body(cfg: CfgNode) -> None:
    if cfg.MODEL.BACKBONE.CONV_BODY.startswith("timm/"):
        pytest.importorskip("timm", reason="needs the extra timm")


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, marks=pytest.mark.slow if "101" in file.stem else (), id=_name(file))
        for file in FILES
    ],
)
def test_config_loads_builds_and_loads_again(file, tmp_path):
    cfg = load_config(file, ["MODEL.DEVICE", "meta"])
    (tmp_path / "config.yaml").write_text(cfg.dump())
    assert load_config(tmp_path / "config.yaml") == cfg
    _needs_its_body(cfg)
    with torch.device("meta"):
        build_model(cfg)


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, marks=() if file.stem in _FAST else pytest.mark.slow, id=_name(file))
        for file in LEAVES
    ],
)
def test_narrow_version_of_config_trains_and_detects(file, train_and_detect):
    _needs_its_body(load_config(file))
    train_and_detect(file)


@_every_leaf
def test_config_is_listed_short_and_has_known_datasets(file):
    assert f"({file.relative_to(_CONFIGS)})" in (_CONFIGS / "README.md").read_text()
    text = file.read_text()
    own_data = "CATALOG:" in text  # a whole example, not one of the baselines
    assert len(text.splitlines()) <= (22 if own_data else 15)
    datasets = load_config(file).DATASETS
    known = {entry["name"] for entry in datasets.CATALOG} | BUILTIN.keys()
    assert datasets.TRAIN
    assert {*datasets.TRAIN, *datasets.TEST} <= known


@_every_leaf
def test_config_has_no_redundant_keys(file, tmp_path):
    """A key that repeats its base or default only hides what matters."""
    content = yaml.safe_load(file.read_text())
    bases = content.pop("_BASE_", [])
    bases = [bases] if isinstance(bases, str) else bases
    only_bases = tmp_path / "bases.yaml"
    paths = [os.path.relpath(file.parent / base, tmp_path) for base in bases]
    only_bases.write_text(yaml.safe_dump({"_BASE_": paths}))
    before, after = (dict(flatten(load_config(path))) for path in (only_bases, file))
    for name, _ in flatten(content):
        assert before[name] != after[name], f"{name} repeats {after[name]!r}"
