"""maskrcnn-benchmark's keys, defaults and YAML files carry over."""

import ast
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from detlite.checkpoint.loading import weight_file
from detlite.config import KEYS, load_config
from detlite.config.files import read_chain
from detlite.config.loading import flatten
from detlite.config.maskrcnn_benchmark import RESTATING
from detlite.config.removed import KEYS as REMOVED
from detlite.config.removed import NO_EFFECT
from detlite.data.datasets.builtin_entries import BUILTIN
from detlite.modeling.build import build_model

# All of its files, if DETLITE_MRB_CONFIGS names a copy of the folder `configs` of
# https://github.com/facebookresearch/maskrcnn-benchmark.
_PUBLISHED = sorted(Path(os.environ.get("DETLITE_MRB_CONFIGS") or "no folder").rglob("*.yaml"))

# Defaults that differ from maskrcnn-benchmark on purpose.
DELIBERATE = {
    "MODEL.DEVICE": "auto",  # works without a GPU
    "OUTPUT_DIR": "output",  # not the current folder
    "DATALOADER.NUM_WORKERS": None,  # 4 if there are as many cores
    "MODEL.RESNETS.RES2_OUT_CHANNELS": None,  # depends on the depth
    "MODEL.RESNETS.BACKBONE_OUT_CHANNELS": None,  # depends on CONV_BODY
}

# Parts of its files. A file that repeats a section adds to it, as several of its own do.
_COCO = """
DATASETS:
  TRAIN: ("coco_2014_train", "coco_2014_valminusminival")
  TEST: ("coco_2014_minival",)
"""
_KEYPOINT_DATA = """
DATASETS:
  TRAIN: ("keypoints_coco_2014_train", "keypoints_coco_2014_valminusminival",)
  TEST: ("keypoints_coco_2014_minival",)
INPUT: {MIN_SIZE_TRAIN: [640, 672, 704, 736, 768, 800]}
"""
_CITYSCAPES = """
DATASETS:
  TRAIN: ("cityscapes_fine_instanceonly_seg_train_cocostyle",)
  TEST: ("cityscapes_fine_instanceonly_seg_val_cocostyle",)
MODEL: {ROI_BOX_HEAD: {NUM_CLASSES: 9}}
"""
_VOC = """
DATASETS: {TRAIN: [voc_2012_train_cocostyle], TEST: [voc_2012_val_cocostyle]}
MODEL: {RPN: {POST_NMS_TOP_N_TEST: 300, ANCHOR_SIZES: "(128, 256, 512)"},
        ROI_BOX_HEAD: {NUM_CLASSES: 21}}
TEST: {IMS_PER_BATCH: 1}
"""
_ALL = """
MODEL: {META_ARCHITECTURE: "GeneralizedRCNN"}
SOLVER: {BASE_LR: 0.02, WEIGHT_DECAY: 0.0001, STEPS: "(60000, 80000)", MAX_ITER: 90000}
"""
_IMAGENET = 'MODEL: {WEIGHT: "catalog://ImageNetPretrained/MSRA/R-50"}\n'
_C4 = _ALL + _IMAGENET + "MODEL: {RPN: {PRE_NMS_TOP_N_TEST: 6000}}\n"
_FPN = (
    _ALL
    + """
MODEL:
  RESNETS: {BACKBONE_OUT_CHANNELS: 256}
  RPN: {USE_FPN: True, ANCHOR_STRIDE: "(4, 8, 16, 32, 64)", PRE_NMS_TOP_N_TRAIN: 2000,
        PRE_NMS_TOP_N_TEST: 1000, POST_NMS_TOP_N_TEST: 1000, FPN_POST_NMS_TOP_N_TEST: 1000}
  ROI_HEADS: {USE_FPN: True}
DATALOADER: {SIZE_DIVISIBILITY: 32}
"""
)
_R50_FPN = _FPN + _IMAGENET + 'MODEL: {BACKBONE: {CONV_BODY: "R-50-FPN"}}\n'
_BOX_HEAD = """
MODEL:
  ROI_BOX_HEAD: {POOLER_RESOLUTION: 7, POOLER_SCALES: "(0.25, 0.125, 0.0625, 0.03125)",
                 POOLER_SAMPLING_RATIO: 2, FEATURE_EXTRACTOR: "FPN2MLPFeatureExtractor",
                 PREDICTOR: "FPNPredictor"}
"""
_MASK_HEAD = """
MODEL:
  ROI_MASK_HEAD: {POOLER_SCALES: "(0.25, 0.125, 0.0625, 0.03125)", POOLER_SAMPLING_RATIO: 2,
                  FEATURE_EXTRACTOR: "MaskRCNNFPNFeatureExtractor", POOLER_RESOLUTION: 14,
                  PREDICTOR: "MaskRCNNC4Predictor", RESOLUTION: 28,
                  SHARE_BOX_FEATURE_EXTRACTOR: False}
  MASK_ON: True
"""
_KEYPOINT_HEAD = """
MODEL:
  ROI_BOX_HEAD: {NUM_CLASSES: 2}
  ROI_KEYPOINT_HEAD: {POOLER_SCALES: "(0.25, 0.125, 0.0625, 0.03125)", POOLER_SAMPLING_RATIO: 2,
                      FEATURE_EXTRACTOR: "KeypointRCNNFeatureExtractor", POOLER_RESOLUTION: 14,
                      PREDICTOR: "KeypointRCNNPredictor", RESOLUTION: 56,
                      SHARE_BOX_FEATURE_EXTRACTOR: False}
  KEYPOINT_ON: True
"""
_RETINANET = """
MODEL:
  BACKBONE: {CONV_BODY: "R-50-FPN-RETINANET"}
  RPN_ONLY: True
  RETINANET_ON: True
  RETINANET: {SCALES_PER_OCTAVE: 3, STRADDLE_THRESH: -1, USE_C5: False,
              FG_IOU_THRESHOLD: 0.5, BG_IOU_THRESHOLD: 0.4}
"""
_GN = """
INPUT: {MIN_SIZE_TRAIN: 800, MAX_SIZE_TRAIN: 1333, MIN_SIZE_TEST: 800, MAX_SIZE_TEST: 1333}
MODEL:
  WEIGHT: "" # no pretrained model
  BACKBONE: {CONV_BODY: "R-50-FPN", FREEZE_CONV_BODY_AT: 0}
  RESNETS: {STRIDE_IN_1X1: False, TRANS_FUNC: "BottleneckWithGN", STEM_FUNC: "StemWithGN"}
  FPN: {USE_GN: True}
  RPN: {BATCH_SIZE_PER_IMAGE: 512, POSITIVE_FRACTION: 0.25}
  ROI_BOX_HEAD: {USE_GN: True}
  ROI_MASK_HEAD: {USE_GN: True, CONV_LAYERS: "(256, 256, 256, 256)"}
SOLVER: {IMS_PER_BATCH: 16} # Assume 8 gpus
"""
_RESNEXT = """
MODEL:
  WEIGHT: "catalog://ImageNetPretrained/FAIR/20171220/X-101-32x8d"
  BACKBONE: {CONV_BODY: "R-101-FPN"}
  RESNETS: {STRIDE_IN_1X1: False, NUM_GROUPS: 32, WIDTH_PER_GROUP: 8}
"""
_DCN = """
MODEL: {RESNETS: {STAGE_WITH_DCN: "(False, True, True, True)", WITH_MODULATED_DCN: True,
                  DEFORMABLE_GROUPS: 1}}
TEST: {BBOX_AUG: {ENABLED: True, H_FLIP: True, SCALES: "(400, 500)", MAX_SIZE: 2000,
                  SCALE_H_FLIP: True}}
"""
_FBNET = (
    _ALL
    + """
MODEL:
  BACKBONE: {CONV_BODY: FBNet}
  FBNET: {ARCH: "xirb16d_dsmask", BN_TYPE: "bn", WIDTH_DIVISOR: 8, DW_CONV_SKIP_BN: True,
          DW_CONV_SKIP_RELU: True, DET_HEAD_LAST_SCALE: -1.0}
  RPN: {ANCHOR_SIZES: "(16, 32, 64, 128, 256)", ANCHOR_STRIDE: "(16, )", RPN_HEAD: FBNet.rpn_head}
  ROI_BOX_HEAD: {POOLER_RESOLUTION: 6, FEATURE_EXTRACTOR: FBNet.roi_head, NUM_CLASSES: 81}
  ROI_MASK_HEAD: {POOLER_RESOLUTION: 6, FEATURE_EXTRACTOR: FBNet.roi_head_mask, RESOLUTION: 12,
                  PREDICTOR: "MaskRCNNConv1x1Predictor", SHARE_BOX_FEATURE_EXTRACTOR: False}
  MASK_ON: True
INPUT:
  MIN_SIZE_TRAIN: "(320, )"
  PIXEL_MEAN: [103.53, 116.28, 123.675]
  PIXEL_STD: [57.375, 57.12, 58.395]
"""
)
_SHARED_MASK_HEAD = "MODEL: {ROI_MASK_HEAD: {SHARE_BOX_FEATURE_EXTRACTOR: True}, MASK_ON: True}"

FILES = {
    "e2e_mask_rcnn_R_50_C4_1x": _C4 + _COCO + _SHARED_MASK_HEAD,
    "e2e_mask_rcnn_R_50_FPN_1x": _R50_FPN + _BOX_HEAD + _MASK_HEAD + _COCO,
    "e2e_keypoint_rcnn_R_50_FPN_1x": _R50_FPN + _BOX_HEAD + _KEYPOINT_HEAD + _KEYPOINT_DATA,
    "scratch_e2e_mask_rcnn_R_50_FPN_3x_gn": _FPN + _BOX_HEAD + _MASK_HEAD + _COCO + _GN,
    "e2e_mask_rcnn_X_101_32x8d_FPN_1x": _FPN + _BOX_HEAD + _MASK_HEAD + _COCO + _RESNEXT,
    "e2e_mask_rcnn_mdconv_R_50_FPN_1x": _R50_FPN + _BOX_HEAD + _MASK_HEAD + _CITYSCAPES + _DCN,
    "e2e_faster_rcnn_R_50_C4_1x_voc": _C4 + _VOC,
    "e2e_mask_rcnn_fbnet_xirb16d_dsmask": _FBNET + _COCO,
    "rpn_R_50_FPN_1x": _R50_FPN + _COCO + "MODEL: {RPN_ONLY: True}",
    "retinanet_R-50-FPN_P5_1x": _FPN + _IMAGENET + _BOX_HEAD + _COCO + _RETINANET,
}
_CLASSES = {"e2e_keypoint_rcnn_R_50_FPN_1x": 2, "e2e_mask_rcnn_mdconv_R_50_FPN_1x": 9,
            "e2e_faster_rcnn_R_50_C4_1x_voc": 21}  # fmt: skip


@pytest.fixture(scope="module")
def reference(data_root):
    """maskrcnn-benchmark's keys and defaults."""
    file = data_root / "reference" / "maskrcnn_benchmark_keys.txt"
    if not file.exists():
        pytest.skip(f"no list of maskrcnn-benchmark's keys at {file} (DETLITE_TEST_DATA)")
    rows = [line.split(": ", 1) for line in file.read_text().splitlines() if line[:1] not in "#"]
    return {name: ast.literal_eval(value) for name, value in rows}


def test_every_key_is_known(reference):
    assert len(reference) > 150
    known = {key.name for key in KEYS} | REMOVED.keys() | NO_EFFECT.keys() | RESTATING.keys()
    assert not reference.keys() - known


def test_defaults_are_equal_except_deliberate_ones(reference):
    defaults = dict(flatten(load_config()))
    common = reference.keys() & defaults.keys()
    differing = {name: defaults[name] for name in common if defaults[name] != reference[name]}
    assert differing == DELIBERATE


def every_key(reference: dict[str, Any], stated: dict[str, Any]) -> str:
    """A config that states every key, as maskrcnn-benchmark's training leaves one behind."""
    tree: dict[str, Any] = {"PATHS_CATALOG": "maskrcnn_benchmark/config/paths_catalog.py"}
    for name, default in reference.items():
        *sections, leaf = name.split(".")
        node, own = tree, stated
        for section in sections:
            node, own = node.setdefault(section, {}), own.get(section, {})
        value = own.get(leaf, default)
        node[leaf] = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(tree)


def test_config_with_every_key_loads(reference, tmp_path):
    file = tmp_path / "config.yml"
    file.write_text(every_key(reference, {}))
    widths = ["MODEL.RESNETS.RES2_OUT_CHANNELS", 256, "MODEL.RESNETS.BACKBONE_OUT_CHANNELS", 1024]
    assert load_config(file) == load_config(
        None, ["MODEL.DEVICE", "cuda", "OUTPUT_DIR", ".", "DATALOADER.NUM_WORKERS", 4, *widths]
    )


def test_saved_config_does_not_set_the_convention(tmp_path):
    left = tmp_path / "config.yml"
    left.write_text("PATHS_CATALOG: x/paths_catalog.py\nMODEL: {WEIGHT: ''}")
    assert load_config(left).MODEL.CONVENTION == ""


@pytest.fixture
def file(name, tmp_path):
    path = tmp_path / f"{name}.yaml"
    path.write_text(FILES[name])
    return path


@pytest.mark.parametrize("name", FILES)
def test_file_builds_unchanged(name, file, monkeypatch):
    cfg = load_config(file, ["MODEL.DEVICE", "meta"])
    with torch.device("meta"):
        model = build_model(cfg)
    assert ("masks" in model.required_targets) == ("mask" in name)
    assert ("keypoints" in model.required_targets) == ("keypoint" in name)
    assert hasattr(model, "roi_heads") == name.startswith(("e2e", "scratch"))
    assert model.num_classes == _CLASSES.get(name, 81)
    assert {*cfg.DATASETS.TRAIN, *cfg.DATASETS.TEST} <= BUILTIN.keys()
    if cfg.MODEL.WEIGHT:
        addresses = []
        monkeypatch.setattr(
            "detlite.checkpoint.weight_catalog.download",
            lambda address, *_: addresses.append(address),
        )
        weight_file(cfg)
        assert addresses[0].startswith("https://")


_one_fast = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "e2e_mask_rcnn_R_50_FPN_1x" else pytest.mark.slow)
        for name in FILES
    ],
)


@_one_fast
def test_saved_config_builds_the_same_model(name, file, reference, tmp_path):
    [(_, stated)] = read_chain(file)
    (tmp_path / "config.yml").write_text(every_key(reference, stated))
    meta = ["MODEL.DEVICE", "meta"]
    with torch.device("meta"):
        left = build_model(load_config(tmp_path / "config.yml", meta)).state_dict()
        own = build_model(load_config(file, meta)).state_dict()
    assert {n: v.shape for n, v in left.items()} == {n: v.shape for n, v in own.items()}


@_one_fast
def test_narrow_version_of_file_trains_and_detects(file, train_and_detect):
    train_and_detect(file)


@pytest.mark.parametrize("published", _PUBLISHED, ids=lambda f: f"{f.parent.name}/{f.stem}")
def test_published_file_builds_trains_and_detects(published, train_and_detect):
    cfg = load_config(published, ["MODEL.DEVICE", "meta"])
    with torch.device("meta"):
        build_model(cfg)
    assert {*cfg.DATASETS.TRAIN, *cfg.DATASETS.TEST} <= BUILTIN.keys()
    train_and_detect(published)
