"""Test that every file in configs/ loads, builds, detects and has no redundant keys."""

import os
from pathlib import Path

import pytest
import torch
import yaml
from yacs.config import CfgNode

from detlite.config import load_config
from detlite.data.datasets.builtin_entries import BUILTIN
from detlite.modeling.build import build_model

_CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted(_CONFIGS.rglob("*.yaml"))
LEAVES = [file for file in FILES if file.parent.name != "_base_"]


def _name(file: Path) -> str:
    return str(file.relative_to(_CONFIGS))


_every_file = pytest.mark.parametrize("file", FILES, ids=_name)
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
def test_config_loads_and_builds(file):
    cfg = load_config(file, ["MODEL.DEVICE", "meta"])
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


@_every_file
def test_resolved_config_loads_again(file, tmp_path):
    cfg = load_config(file)
    (tmp_path / "config.yaml").write_text(cfg.dump())
    assert load_config(tmp_path / "config.yaml") == cfg


@_every_leaf
def test_datasets_are_known(file):
    datasets = load_config(file).DATASETS
    known = {entry["name"] for entry in datasets.CATALOG} | BUILTIN.keys()
    assert datasets.TRAIN
    assert {*datasets.TRAIN, *datasets.TEST} <= known


@_every_leaf
def test_model_is_listed(file):
    assert f"({file.relative_to(_CONFIGS)})" in (_CONFIGS / "README.md").read_text()


@_every_leaf
def test_config_with_bases_is_short(file):
    text = file.read_text()
    own_data = "CATALOG:" in text  # a whole example, not one of the baselines
    assert len(text.splitlines()) <= (22 if own_data else 15)


@_every_leaf
def test_config_has_no_redundant_keys(file, tmp_path):
    """A key that repeats its base or default only hides what matters."""

    def leaves(node, prefix=""):
        for key, value in node.items():
            if isinstance(value, dict):
                yield from leaves(value, f"{prefix}{key}.")
            else:
                yield prefix + key

    content = yaml.safe_load(file.read_text())
    bases = content.pop("_BASE_", [])
    bases = [bases] if isinstance(bases, str) else bases
    only_bases = tmp_path / "bases.yaml"
    paths = [os.path.relpath(file.parent / base, tmp_path) for base in bases]
    only_bases.write_text(yaml.safe_dump({"_BASE_": paths}))
    before, after = load_config(only_bases), load_config(file)
    for name in leaves(content):
        old, new = before, after
        for part in name.split("."):
            old, new = old[part], new[part]
        assert old != new, f"{name} repeats {new!r}"
