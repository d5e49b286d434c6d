"""Conversion of state dicts of every framework to models."""

import tracemalloc

import numpy as np
import pytest
import torch

from detlite.checkpoint.files import read_checkpoint
from detlite.checkpoint.loading import load_weights
from detlite.conversion.categories import guess_categories
from detlite.conversion.convert import convert, recognize, unwrap
from detlite.errors import CheckpointError
from tests.conversion.recorded_state_dicts import CLASSES, state_dict
from tests.engine.toy import new_toy

# The backbone of each model.
FILES = {
    "detectron2, FPN": "R-50-FPN",
    "detectron2, X-101-FPN": "R-101-FPN",
    "detectron2, DC5": "R-50-C5",
    "detectron2, cascade": "R-50-FPN",
    "detectron2, cascade of convolutions": "R-50-FPN",
    "detectron2, long RPN": "R-50-FPN",
    "detectron2, panoptic": "R-50-FPN",
    "detectron2, C4": "R-50-C4",
    "maskrcnn-benchmark, FPN": "R-50-FPN",
    "maskrcnn-benchmark, C4": "R-50-C4",
    "maskrcnn-benchmark, C4 keypoints": "R-50-C4",
    "maskrcnn-benchmark, C4 shared keypoints": "R-50-C4",
    "caffe2, FPN": "R-50-FPN",
    "caffe2, C4": "R-50-C4",
    "caffe2, keypoints": "R-50-FPN",
}
IMAGE = torch.rand(3, 64, 64)


@pytest.mark.parametrize("name", FILES)
def test_rcnn(name, built):
    source, state = name.split(", ")[0], state_dict(name)
    assert recognize(unwrap({"model": state}).state) == source
    cfg, model = built({"model": state, "iteration": 7})
    assert FILES[name] == cfg.MODEL.BACKBONE.CONV_BODY
    assert source.replace("caffe2", "maskrcnn-benchmark") == cfg.MODEL.CONVENTION
    assert cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES == CLASSES
    assert (source != "caffe2" or "C4" in name) == cfg.MODEL.MASK_ON
    assert ("keypoints" in name) == cfg.MODEL.KEYPOINT_ON
    assert len(model.categories) == CLASSES - 1
    assert model([IMAGE])[0]["boxes"].shape[1] == 4


@pytest.mark.parametrize("source", ["detectron2", "maskrcnn-benchmark"])
@pytest.mark.parametrize("fpn", [True, False], ids=["FPN", "C4"])
def test_proposal_network(source, fpn, built):
    full = state_dict(f"{source}, {'FPN' if fpn else 'C4'}")
    cfg, model = built({n: v for n, v in full.items() if "roi_heads." not in n})
    assert cfg.MODEL.META_ARCHITECTURE == "ProposalNetwork"
    assert f"R-50-{'FPN' if fpn else 'C4'}" == cfg.MODEL.BACKBONE.CONV_BODY
    assert (1000 if fpn else 12000) == cfg.MODEL.RPN.PRE_NMS_TOP_N_TEST
    assert [category["name"] for category in model.categories] == ["class 1"]
    assert set(model([IMAGE])[0]["labels"].tolist()) <= {1}


# Names of the second convolutions of the towers.
RETINANETS = {
    "torchvision": ("head.classification_head.conv.2", "head.regression_head.conv.1.0"),
    "detectron2": ("head.cls_subnet.2", "head.bbox_subnet.2"),
    "maskrcnn-benchmark": ("rpn.head.cls_tower.2", "rpn.head.bbox_tower.2"),
}


@pytest.mark.parametrize("source", RETINANETS)
def test_retinanet(source, built):
    state = state_dict(f"{source}, RetinaNet")
    assert recognize(unwrap(state).state) == source
    cfg, model = built({"model": state})
    assert cfg.MODEL.BACKBONE.CONV_BODY == "R-50-FPN-RETINANET"
    assert source == cfg.MODEL.CONVENTION
    assert (source != "torchvision") == cfg.MODEL.RETINANET.USE_C5
    assert cfg.MODEL.RETINANET.NUM_CLASSES == CLASSES
    assert cfg.MODEL.RETINANET.NUM_CONVS == 4
    assert len(model.categories) == CLASSES - 1
    assert model([IMAGE])[0]["boxes"].shape[1] == 4
    converted = model.state_dict()
    for tower, name in zip(("cls", "bbox"), RETINANETS[source], strict=True):
        own = converted[f"head.{tower}_tower.1.0.weight"]
        assert torch.equal(own, state[f"{name}.weight"])


@pytest.mark.parametrize(
    ("name", "weight"),
    [
        ("detectron2, deformable", "backbone.bottom_up.res4.1.conv2.weight"),
        ("maskrcnn-benchmark, FPN deformable", "module.backbone.body.layer3.1.conv2.conv.weight"),
    ],
)
def test_deformable_convolution(name, weight, built):
    state = state_dict(name)
    cfg, model = built(state)
    resnets = cfg.MODEL.RESNETS
    assert resnets.STAGE_WITH_DCN == (False, False, True, True)
    assert (resnets.WITH_MODULATED_DCN, resnets.DEFORMABLE_GROUPS) == (True, 1)
    converted = model.state_dict()["backbone.body.res4.1.conv2.conv.weight"]
    assert torch.equal(converted, state[weight])
    assert len(model([IMAGE])) == 1


@pytest.mark.parametrize(
    ("name", "added", "removed", "message"),
    [
        ("detectron2, FPN", None, "cls_score", "detectron2's, but .*cls_score"),
        ("detectron2, FPN", None, ".res3.3.", r"detectron2's, but .*\[3, 3, 6, 3\] blocks"),
        ("detectron2, RetinaNet", "head.ctrness.x", "none", "detectron2's, but it is an FCOS"),
        ("torchvision, RetinaNet", "head.regression_head.bbox_ctrness.x", "none",
         "torchvision's, but it is an FCOS"),
    ],
)  # fmt: skip
def test_unknown_models(name, added, removed, message, saved):
    state = {n: v for n, v in state_dict(name).items() if removed not in n}
    content = state | ({added: torch.zeros(1)} if added else {})
    with pytest.raises(CheckpointError, match=rf"w\.pth: looks like {message}"):
        read_checkpoint(saved(content))


@pytest.mark.parametrize("name", ["." * 100_000, "module." * 20_000 + "x"])
def test_names_with_many_dots(name, saved):
    """All their prefixes together have 5 GB."""
    file = saved({"model": {name: torch.ones(1), "conv1.weight": torch.ones(2)}})
    tracemalloc.start()
    assert len(read_checkpoint(file).model) == 2
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50_000_000


@pytest.mark.parametrize("content", [{"model": {"weight": torch.zeros(1)}}, [np.zeros(1)], {}])
def test_unknown_source(content):
    assert recognize(unwrap(content).state) is None
    with pytest.raises(ValueError, match=r"contains no state dict|no known R-CNN"):
        convert(content, "detectron2")


def _prefixed(state, prefix):
    return {prefix + name: value for name, value in state.items()}


# What training code puts around a state dict.
WRAPPERS = {
    "compiled": lambda state: _prefixed(state, "_orig_mod."),
    "compiled modules": lambda state: {
        name.replace(".", "._orig_mod.", 1).replace(".0.", ".0._checkpoint_wrapped_module.", 1): v
        for name, v in state.items()
    },
    "Lightning": lambda state: {
        "state_dict": {**_prefixed(state, "detector."), "criterion.weight": torch.ones(4)},
        "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(3)}}}],
        "callbacks": {"EMA": {"weights": _prefixed(state, "module.")}},
    },
    "average": lambda state: {"n_averaged": torch.tensor(3), **_prefixed(state, "module.")},
    "average next to the model": lambda state: {
        "model_ema": {n: torch.zeros_like(v) for n, v in state.items()},
        "net": _prefixed(state, "module."),
    },
    "teacher": lambda state: {
        "model": {
            **_prefixed({n: torch.zeros_like(v) for n, v in state.items()}, "teacher.net."),
            **_prefixed(state, "student.net."),
        }
    },
    "any names": lambda state: {"epoch": 3, "best": {"a": {"b": _prefixed(state, "x.y.z.")}}},
    "list": lambda state: [{"epoch": 3}, (_prefixed(state, "net."), 1)],
    "arrays": lambda state: {"state": {n: v.numpy() for n, v in state.items()}},
    "parts": lambda state: {
        part: {n[len(part) + 1 :]: v for n, v in state.items() if n.split(".")[0] == part}
        for part in dict.fromkeys(name.split(".")[0] for name in state)
    },
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", [pytest.param("detectron2, FPN", marks=pytest.mark.slow),
                                  "torchvision, RetinaNet"])  # fmt: skip
def test_wrapped_state_dicts(name, wrapper, saved):
    source, state = name.split(", ")[0], state_dict(name)
    checkpoint, expected = read_checkpoint(saved(WRAPPERS[wrapper](state))), convert(state, source)
    assert checkpoint.source == source
    assert checkpoint.config == expected.config
    assert checkpoint.model.keys() == expected.model.keys()
    assert all(torch.equal(checkpoint.model[n], v) for n, v in expected.model.items())


def test_unused_arrays_are_named(saved, caplog):
    with caplog.at_level("INFO"):
        read_checkpoint(saved({"model": state_dict("detectron2, FPN"), "bank": torch.ones(3)}))
    assert "w.pth: uses the weights model.*; not used: bank" in caplog.text


def test_names_of_the_model_take_precedence_over_wrappers(saved):
    """A model whose own names begin with that of a wrapper is loaded with them."""
    toy = new_toy()
    toy.net = toy.body
    del toy.body
    checkpoint = read_checkpoint(saved({"state_dict": {"net.weight": toy.net.weight.data + 1}}))
    assert checkpoint.prefix == "state_dict.net."
    with pytest.raises(CheckpointError, match=r"1 of \d+ entries fit(?!.*unknown)"):
        load_weights(toy, checkpoint)


def test_config_next_to_a_nested_state_dict():
    content = {"checkpoint": {"state_dict": {"rpn_head.x": torch.ones(1)}, "meta": {"cfg": "a"}}}
    assert unwrap(content).container is content["checkpoint"]


@pytest.mark.parametrize(
    ("name", "listed", "other"),
    [
        ("detectron2, FPN", ("MODEL.RPN.ANCHOR_SIZES", "ROI_MASK_HEAD.POOLER_TYPE ROIAlignV2"),
         ("MODEL.RETINANET", "KEYPOINT")),
        ("detectron2, RetinaNet", ("MODEL.RETINANET.NMS_TH",), ("MODEL.RPN.",)),
        ("caffe2, FPN", ("INPUT.PIXEL_MEAN", "['frozen_norm_eps=0.0']"), ("RETINANET",)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("file", ["w.pth", "model_final_0123ab.pkl"])
def test_assumed_settings_are_logged(name, listed, other, file, built, caplog):
    with caplog.at_level("INFO"):
        built(state_dict(name), "INPUT.MIN_SIZE_TEST", 600, name=file)
    (record,) = [r for r in caplog.records if "do not contain these settings" in r.message]
    # The settings of published files are known.
    assert record.levelname == ("WARNING" if file == "w.pth" else "INFO")
    assert f"the weights ({name.split(', ')[0]})" in record.message
    assert all(text in record.message for text in listed)
    assert not any(text in record.message for text in (*other, "INPUT.MIN_SIZE_TEST"))


def test_other_anchors_name_their_keys(built):
    state = state_dict("detectron2, FPN")
    for name, value in state.items():
        if "objectness_logits" in name or "anchor_deltas" in name:
            state[name] = torch.cat([value, value])
    message = r"number of anchors per cell.*MODEL\.RPN\.ANCHOR_SIZ"
    with pytest.raises(CheckpointError, match=message):
        built(state)
    sizes = [[size, 1.5 * size] for size in (32, 64, 128, 256, 512)]
    built(state, "MODEL.RPN.ANCHOR_SIZES", sizes)


def test_categories_by_number_of_classes():
    assert [c["id"] for c in guess_categories(81)][10:13] == [11, 13, 14]
    assert guess_categories(91)[11] == {"id": 12, "name": "N/A"}
    assert guess_categories(91)[89] == {"id": 90, "name": "toothbrush"}
    assert guess_categories(21)[19] == {"id": 20, "name": "tvmonitor"}
    (person,) = guess_categories(2, keypoints=True)
    assert (person["id"], person["name"]) == (1, "person")
    assert person["keypoints"][:3] == ["nose", "left_eye", "right_eye"]
    assert (len(person["keypoints"]), person["keypoints"][-1]) == (17, "right_ankle")
    assert guess_categories(3) == [{"id": 1, "name": "class 1"}, {"id": 2, "name": "class 2"}]
