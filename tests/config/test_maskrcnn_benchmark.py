"""maskrcnn-benchmark's keys, defaults and YAML files carry over."""

from __future__ import annotations

import ast
from typing import Any

import pytest
import torch
import yaml

from detlite.config import KEYS, load_config
from detlite.config.schema import NO_EFFECT
from detlite.modeling.rcnn import build_model

# Where a default differs from maskrcnn-benchmark's on purpose.
DELIBERATE = {
    "MODEL.DEVICE": "auto",  # works without a GPU as well
    "OUTPUT_DIR": "output",  # never among the user's sources
    "MODEL.RETINANET.ANCHOR_STRIDES": (16,),  # follows from CONV_BODY, of which C4 is the default
}

_DATA = """
DATASETS:
  TRAIN: ("coco_2014_train", "coco_2014_valminusminival")
  TEST: ("coco_2014_minival",)
"""
_SOLVER = """
SOLVER:
  BASE_LR: 0.02
  WEIGHT_DECAY: 0.0001
  STEPS: (60000, 80000)
  MAX_ITER: 90000
"""
_FASTER_C4 = f"""
MODEL:
  META_ARCHITECTURE: "GeneralizedRCNN"
  WEIGHT: "catalog://ImageNetPretrained/MSRA/R-50"
  RPN:
    PRE_NMS_TOP_N_TEST: 6000
    POST_NMS_TOP_N_TEST: 1000
{_DATA}{_SOLVER}  IMS_PER_BATCH: 8
"""
_MASK_C4 = f"""
MODEL:
  META_ARCHITECTURE: "GeneralizedRCNN"
  WEIGHT: "catalog://ImageNetPretrained/MSRA/R-50"
  RPN:
    PRE_NMS_TOP_N_TEST: 6000
    POST_NMS_TOP_N_TEST: 1000
  ROI_MASK_HEAD:
    PREDICTOR: "MaskRCNNC4Predictor"
    SHARE_BOX_FEATURE_EXTRACTOR: True
  MASK_ON: True
{_DATA}{_SOLVER}  IMS_PER_BATCH: 8
"""
_FPN_PARTS = """
  RPN:
    USE_FPN: True
    ANCHOR_STRIDE: (4, 8, 16, 32, 64)
    PRE_NMS_TOP_N_TRAIN: 2000
    PRE_NMS_TOP_N_TEST: 1000
    POST_NMS_TOP_N_TEST: 1000
    FPN_POST_NMS_TOP_N_TEST: 1000
  ROI_HEADS:
    USE_FPN: True
"""
_FPN_BOX_HEAD = """
  ROI_BOX_HEAD:
    POOLER_RESOLUTION: 7
    POOLER_SCALES: (0.25, 0.125, 0.0625, 0.03125)
    POOLER_SAMPLING_RATIO: 2
    FEATURE_EXTRACTOR: "FPN2MLPFeatureExtractor"
    PREDICTOR: "FPNPredictor"
"""
_FPN_MASK_HEAD = """
  ROI_MASK_HEAD:
    POOLER_SCALES: (0.25, 0.125, 0.0625, 0.03125)
    FEATURE_EXTRACTOR: "MaskRCNNFPNFeatureExtractor"
    PREDICTOR: "MaskRCNNC4Predictor"
    POOLER_RESOLUTION: 14
    POOLER_SAMPLING_RATIO: 2
    RESOLUTION: 28
    SHARE_BOX_FEATURE_EXTRACTOR: False
"""
_FASTER_FPN = f"""
MODEL:
  META_ARCHITECTURE: "GeneralizedRCNN"
  WEIGHT: "catalog://ImageNetPretrained/MSRA/R-50"
  BACKBONE:
    CONV_BODY: "R-50-FPN"
  RESNETS:
    BACKBONE_OUT_CHANNELS: 256
{_FPN_PARTS}{_FPN_BOX_HEAD}{_DATA}
DATALOADER:
  SIZE_DIVISIBILITY: 32
{_SOLVER}
"""
_MASK_FPN = f"""
MODEL:
  META_ARCHITECTURE: "GeneralizedRCNN"
  WEIGHT: "catalog://ImageNetPretrained/MSRA/R-50"
  BACKBONE:
    CONV_BODY: "R-50-FPN"
  RESNETS:
    BACKBONE_OUT_CHANNELS: 256
{_FPN_PARTS}{_FPN_BOX_HEAD}{_FPN_MASK_HEAD}  MASK_ON: True
{_DATA}
DATALOADER:
  SIZE_DIVISIBILITY: 32
{_SOLVER}
"""
_MASK_GN = f"""
INPUT:
  MIN_SIZE_TRAIN: 800
  MAX_SIZE_TRAIN: 1333
  MIN_SIZE_TEST: 800
  MAX_SIZE_TEST: 1333
MODEL:
  META_ARCHITECTURE: "GeneralizedRCNN"
  WEIGHT: "" # no pretrained model
  BACKBONE:
    CONV_BODY: "R-50-FPN"
    FREEZE_CONV_BODY_AT: 0 # finetune all layers
  RESNETS: # use GN for backbone
    BACKBONE_OUT_CHANNELS: 256
    STRIDE_IN_1X1: False
    TRANS_FUNC: "BottleneckWithGN"
    STEM_FUNC: "StemWithGN"
  FPN:
    USE_GN: True # use GN for FPN
{_FPN_PARTS}    BATCH_SIZE_PER_IMAGE: 512
    POSITIVE_FRACTION: 0.25
{_FPN_BOX_HEAD}    USE_GN: True
{_FPN_MASK_HEAD}    USE_GN: True
    CONV_LAYERS: (256, 256, 256, 256)
  MASK_ON: True
{_DATA}
DATALOADER:
  SIZE_DIVISIBILITY: 32
SOLVER:
  # Assume 8 gpus
  BASE_LR: 0.02
  WEIGHT_DECAY: 0.0001
  STEPS: (210000, 250000)
  MAX_ITER: 270000
  IMS_PER_BATCH: 16
TEST:
  IMS_PER_BATCH: 8
"""
_MASK_RESNEXT = _MASK_FPN.replace(
    "    BACKBONE_OUT_CHANNELS: 256\n",
    """    BACKBONE_OUT_CHANNELS: 256
    STRIDE_IN_1X1: False
    NUM_GROUPS: 32
    WIDTH_PER_GROUP: 8
""",
).replace("R-50-FPN", "R-101-FPN")

FILES = {
    "e2e_faster_rcnn_R_50_C4_1x": _FASTER_C4,
    "e2e_mask_rcnn_R_50_C4_1x": _MASK_C4,
    "e2e_faster_rcnn_R_50_FPN_1x": _FASTER_FPN,
    "e2e_mask_rcnn_R_50_FPN_1x": _MASK_FPN,
    "scratch_e2e_mask_rcnn_R_50_FPN_3x_gn": _MASK_GN,
    "e2e_mask_rcnn_X_101_32x8d_FPN_1x": _MASK_RESNEXT,
}


@pytest.fixture(scope="module")
def reference(data_root):
    """maskrcnn-benchmark's keys and defaults."""
    file = data_root / "reference" / "maskrcnn_benchmark_keys.txt"
    if not file.exists():
        pytest.skip(f"no list of maskrcnn-benchmark's keys at {file} (DETLITE_TEST_DATA)")
    rows = [line.split(": ", 1) for line in file.read_text().splitlines() if line[:1] not in "#"]
    return {name: ast.literal_eval(value) for name, value in rows}


def test_every_key_is_taken(reference):
    assert len(reference) > 150
    assert not reference.keys() - {key.name for key in KEYS} - NO_EFFECT.keys()


def test_defaults_are_the_same_but_for_the_deliberate_ones(reference):
    cfg, ours = load_config(), {key.name for key in KEYS}
    differing = {}
    for name in reference.keys() & ours:
        value = cfg
        for part in name.split("."):
            value = value[part]
        if value != reference[name]:
            differing[name] = value
    assert differing == DELIBERATE


def test_config_that_states_every_key_loads(reference, tmp_path):
    """As maskrcnn-benchmark's training leaves one behind."""
    tree: dict[str, Any] = {"PATHS_CATALOG": "maskrcnn_benchmark/config/paths_catalog.py"}
    for name, value in reference.items():
        *sections, leaf = name.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[leaf] = list(value) if isinstance(value, tuple) else value
    file = tmp_path / "config.yml"
    file.write_text(yaml.safe_dump(tree))
    assert load_config(file) == load_config(None, ["MODEL.DEVICE", "cuda", "OUTPUT_DIR", "."])


@pytest.mark.parametrize("name", FILES)
def test_file_loads_unchanged_and_builds(name, tmp_path):
    file = tmp_path / f"{name}.yaml"
    file.write_text(FILES[name])
    cfg = load_config(file, ["MODEL.DEVICE", "meta"])
    with torch.device("meta"):
        model = build_model(cfg)
    assert (model.roi_heads.mask is not None) == ("mask" in name)
    assert model.num_classes == 81


def test_values_of_a_file_arrive(tmp_path):
    file = tmp_path / "gn.yaml"
    file.write_text(_MASK_GN)
    cfg = load_config(file)
    assert cfg.MODEL.RESNETS.NORM == "GN"
    assert cfg.MODEL.ROI_MASK_HEAD.CONV_LAYERS == (256, 256, 256, 256)
    assert cfg.INPUT.MIN_SIZE_TRAIN == (800,)
    assert cfg.SOLVER.STEPS == (210000, 250000)
    assert cfg.DATASETS.TRAIN == ("coco_2014_train", "coco_2014_valminusminival")
