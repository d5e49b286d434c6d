"""Whole state dicts of small widths, named as each framework names them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
import yaml
from torch import Tensor
from yacs.config import CfgNode

from detlite.config import load_config
from detlite.config.maskrcnn_benchmark import COUNTING
from detlite.conversion import convert, source_of, to_torchvision
from detlite.conversion.categories import categories_for
from detlite.conversion.names import TO_TORCHVISION, rename
from detlite.engine.checkpoint import CheckpointError, read_checkpoint
from detlite.engine.weights import (
    build_model_from_checkpoint,
    load_config_for_weights,
    load_weights,
)
from detlite.modeling.backbone.resnet import ResNet, ResNetSpec
from detlite.modeling.rcnn import build_model

STEM, RES2, PYRAMID, DIM, CLASSES = 8, 16, 8, 12, 5
DEPTHS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
State = dict[str, Tensor]


class Writer:
    """Collects layers under one framework's names.

    Args:
        conv: name of a convolution in a block, from (stage, block, place); place 0: the shortcut.
        norm: that of its norm.
        scale, shift: leaves of a norm; statistics are left out where they are Caffe2's.
    """

    def __init__(
        self, conv: Callable[..., str], norm: Callable[..., str], caffe2: bool = False
    ) -> None:
        self.conv, self.norm, self.caffe2 = conv, norm, caffe2
        self.state: State = {}

    def layer(self, name: str, *shape: int, bias: bool = True) -> None:
        weight, shift = ("_w", "_b") if self.caffe2 else (".weight", ".bias")
        self.state[name + weight] = torch.randn(*shape)
        if bias:
            transposed = name.endswith(("conv5_mask", "deconv"))
            self.state[name + shift] = torch.randn(shape[1 if transposed else 0])

    def add_norm(self, name: str, channels: int) -> None:
        if self.caffe2:
            leaves = ["_s", "_b"]
        else:
            leaves = [".weight", ".bias", ".running_mean", ".running_var"]
        for leaf in leaves:
            self.state[name + leaf] = torch.rand(channels)

    def body(self, depth: int, stem: tuple[str, str], stages: range, groups: int = 1) -> None:
        if 2 in stages:
            self.layer(stem[0], STEM, 3, 7, 7, bias=False)
            self.add_norm(stem[1], STEM)
        for stage in stages:
            out = RES2 * 2 ** (stage - 2)
            width = out // 4 if groups == 1 else out // 2
            for block in range(DEPTHS[depth][stage - 2]):
                before = out if block else (STEM if stage == 2 else out // 2)
                shapes = {
                    1: (width, before, 1, 1),
                    2: (width, width // groups, 3, 3),
                    3: (out, width, 1, 1),
                }
                if block == 0:
                    shapes[0] = (out, before, 1, 1)
                for place, shape in shapes.items():
                    self.layer(self.conv(stage, block, place), *shape, bias=False)
                    self.add_norm(self.norm(stage, block, place), shape[0])


def detectron2(depth: int = 50, fpn: bool = True, groups: int = 1) -> State:
    def conv(stage: int, block: int, place: int) -> str:
        where = "backbone.bottom_up." if fpn else "backbone."
        where = "roi_heads." if stage == 5 and not fpn else where
        return f"{where}res{stage}.{block}." + (f"conv{place}" if place else "shortcut")

    stem = "backbone.bottom_up.stem.conv1" if fpn else "backbone.stem.conv1"
    out = Writer(conv, lambda *place: conv(*place) + ".norm")
    out.body(depth, (stem, stem + ".norm"), range(2, 6), groups)
    anchors, channels, last = (3, PYRAMID, DIM) if fpn else (15, 4 * RES2, 8 * RES2)
    if fpn:
        for level in range(2, 6):
            out.layer(f"backbone.fpn_lateral{level}", PYRAMID, RES2 * 2 ** (level - 2), 1, 1)
            out.layer(f"backbone.fpn_output{level}", PYRAMID, PYRAMID, 3, 3)
        out.layer("roi_heads.box_head.fc1", DIM, PYRAMID * 49)
        out.layer("roi_heads.box_head.fc2", DIM, DIM)
        for number in range(1, 5):
            out.layer(f"roi_heads.mask_head.mask_fcn{number}", PYRAMID, PYRAMID, 3, 3)
    head = "proposal_generator.rpn_head."
    out.layer(head + "conv", channels, channels, 3, 3)
    out.layer(head + "objectness_logits", anchors, channels, 1, 1)
    out.layer(head + "anchor_deltas", anchors * 4, channels, 1, 1)
    out.layer("roi_heads.box_predictor.cls_score", CLASSES, last)
    out.layer("roi_heads.box_predictor.bbox_pred", 4 * (CLASSES - 1), last)
    out.layer("roi_heads.mask_head.deconv", PYRAMID if fpn else last, PYRAMID, 2, 2)
    out.layer("roi_heads.mask_head.predictor", CLASSES - 1, PYRAMID, 1, 1)
    return out.state


def maskrcnn_benchmark(fpn: bool = True) -> State:
    def name(stage: int, block: int, place: int, kind: str) -> str:
        box = "roi_heads.box.feature_extractor.head."
        where = box if stage == 5 and not fpn else "backbone.body."
        last = f"{kind}{place}" if place else f"downsample.{int(kind == 'bn')}"
        return f"{where}layer{stage - 1}.{block}.{last}"

    out = Writer(lambda *at: name(*at, "conv"), lambda *at: name(*at, "bn"))
    out.body(50, ("backbone.body.stem.conv1", "backbone.body.stem.bn1"), range(2, 6))
    anchors, channels, last = (3, PYRAMID, DIM) if fpn else (15, 4 * RES2, 8 * RES2)
    if fpn:
        for level in range(1, 5):
            out.layer(f"backbone.fpn.fpn_inner{level}", PYRAMID, RES2 * 2 ** (level - 1), 1, 1)
            out.layer(f"backbone.fpn.fpn_layer{level}", PYRAMID, PYRAMID, 3, 3)
        out.layer("roi_heads.box.feature_extractor.fc6", DIM, PYRAMID * 49)
        out.layer("roi_heads.box.feature_extractor.fc7", DIM, DIM)
        for number in range(1, 5):
            out.layer(f"roi_heads.mask.feature_extractor.mask_fcn{number}", PYRAMID, PYRAMID, 3, 3)
    else:  # the shared stage once more
        box = "roi_heads.box."
        shared = {n: v for n, v in out.state.items() if n.startswith(box)}
        out.state |= {n.replace(box, "roi_heads.mask."): v for n, v in shared.items()}
    out.layer("rpn.head.conv", channels, channels, 3, 3)
    out.layer("rpn.head.cls_logits", anchors, channels, 1, 1)
    out.layer("rpn.head.bbox_pred", anchors * 4, channels, 1, 1)
    out.layer("roi_heads.box.predictor.cls_score", CLASSES, last)
    out.layer("roi_heads.box.predictor.bbox_pred", 4 * CLASSES, last)
    out.layer("roi_heads.mask.predictor.conv5_mask", PYRAMID if fpn else last, PYRAMID, 2, 2)
    out.layer("roi_heads.mask.predictor.mask_fcn_logits", CLASSES, PYRAMID, 1, 1)
    out.state["rpn.anchor_generator.cell_anchors.0"] = torch.zeros(anchors, 4)
    return {f"module.{n}": v for n, v in out.state.items()}


def dilated() -> State:
    """R_50_DC5: res5 in the body, and fully connected layers on it."""
    state = detectron2()
    names = {n: n.replace("backbone.bottom_up.", "backbone.") for n in state if ".fpn_" not in n}
    state = {new: state[old] for old, new in names.items()}
    out = Writer(lambda: "", lambda: "")
    head, channels = "proposal_generator.rpn_head.", 8 * RES2
    out.layer(head + "conv", channels, channels, 3, 3)
    out.layer(head + "objectness_logits", 15, channels, 1, 1)
    out.layer(head + "anchor_deltas", 60, channels, 1, 1)
    out.layer("roi_heads.box_head.fc1", DIM, channels * 49)
    out.layer("roi_heads.mask_head.mask_fcn1", PYRAMID, channels, 3, 3)
    return state | out.state


def cascade() -> State:
    """cascade_mask_rcnn_R_50_FPN: three numbered box heads, class-agnostic."""
    state = {n: v for n, v in detectron2().items() if ".box_" not in n}
    out = Writer(lambda: "", lambda: "")
    for stage in range(3):
        out.layer(f"roi_heads.box_head.{stage}.fc1", DIM, PYRAMID * 49)
        out.layer(f"roi_heads.box_head.{stage}.fc2", DIM, DIM)
        out.layer(f"roi_heads.box_predictor.{stage}.cls_score", CLASSES, DIM)
        out.layer(f"roi_heads.box_predictor.{stage}.bbox_pred", 4, DIM)
    return state | out.state


def cascade_of_convolutions() -> State:
    """As in cascade_mask_rcnn_X_152_32x8d_FPN_IN5k_gn_dconv: 4conv1fc box heads in a cascade."""
    state = {n: v for n, v in cascade().items() if ".fc2." not in n}
    out = Writer(lambda: "", lambda: "")
    for stage, number in product(range(3), range(1, 5)):
        out.layer(f"roi_heads.box_head.{stage}.conv{number}", PYRAMID, PYRAMID, 3, 3)
    return state | out.state


def long_rpn() -> State:
    """As in new_baselines/mask_rcnn_R_50_FPN_100ep_LSJ: two convolutions in the RPN."""
    state = {n: v for n, v in detectron2().items() if ".rpn_head.conv." not in n}
    out = Writer(lambda: "", lambda: "")
    for number in range(2):
        out.layer(f"proposal_generator.rpn_head.conv.conv{number}", PYRAMID, PYRAMID, 3, 3)
    return state | out.state


def panoptic() -> State:
    """panoptic_fpn_R_50: a Mask R-CNN, and a head that is not taken over."""
    out = Writer(lambda: "", lambda: "")
    out.layer("sem_seg_head.p2.0", PYRAMID, PYRAMID, 3, 3)
    out.layer("sem_seg_head.predictor", 54, PYRAMID, 1, 1)
    return detectron2() | out.state


def test_dilated_c5():
    state = dilated()
    converted = convert(state, "detectron2")
    settings = converted.settings
    assert settings["MODEL.BACKBONE.CONV_BODY"] == "R-50-C5"
    assert settings["MODEL.RESNETS.RES5_DILATION"] == 2
    assert settings["MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION"] == 7
    assert settings["MODEL.ROI_MASK_HEAD.RESOLUTION"] == 28
    assert settings["MODEL.RPN.PRE_NMS_TOP_N_TEST"] == 6000
    fc1 = state["roi_heads.box_head.fc1.weight"]
    assert torch.equal(converted.model["roi_heads.box.feature_extractor.fc6.weight"], fc1)


def test_stages_of_a_cascade(tmp_path):
    state = cascade()
    torch.save(state, tmp_path / "w.pth")
    cfg, model = build_model_from_checkpoint(tmp_path / "w.pth", ["MODEL.DEVICE", "cpu"])
    assert cfg.MODEL.ROI_HEADS.CASCADE_IOUS == (0.5, 0.6, 0.7)
    assert [coder.weights for coder in (stage.box_coder for stage in model.roi_heads.box)] == [
        (10, 10, 5, 5), (20, 20, 10, 10), (30, 30, 15, 15),
    ]  # fmt: skip
    ours = model.state_dict()
    for stage in range(3):
        theirs = state[f"roi_heads.box_predictor.{stage}.cls_score.weight"]
        assert torch.equal(ours[f"roi_heads.box.{stage}.predictor.cls_score.weight"][1:],
                           theirs[:-1])  # fmt: skip
        boxes = ours[f"roi_heads.box.{stage}.predictor.bbox_pred.bias"]
        assert torch.equal(boxes[4:], state[f"roi_heads.box_predictor.{stage}.bbox_pred.bias"])


@pytest.mark.parametrize("source", ["detectron2", "maskrcnn-benchmark"])
@pytest.mark.parametrize("fpn", [True, False], ids=["FPN", "C4"])
def test_proposals_alone(source, fpn, tmp_path):
    full = detectron2(fpn=fpn) if source == "detectron2" else maskrcnn_benchmark(fpn)
    state = {n: v for n, v in full.items() if "roi_heads." not in n}
    assert source_of(state) == source
    torch.save(state, tmp_path / "w.pth")
    cfg, model = build_model_from_checkpoint(tmp_path / "w.pth", ["MODEL.DEVICE", "cpu"])
    assert cfg.MODEL.RPN_ONLY
    assert f"R-50-{'FPN' if fpn else 'C4'}" == cfg.MODEL.BACKBONE.CONV_BODY
    assert (1000 if fpn else 12000) == cfg.MODEL.RPN.PRE_NMS_TOP_N_TEST
    assert [category["name"] for category in model.categories] == ["class 1"]
    assert set(model([torch.rand(3, 64, 64)])[0]["labels"].tolist()) <= {1}


def retinanet(source: str) -> State:
    """A RetinaNet by a framework's names; torchvision's with P6 from P5, the others' from C5."""
    full = {"torchvision": torchvision_fpn, "detectron2": detectron2}.get(
        source, maskrcnn_benchmark
    )()
    state = {
        name.removeprefix("module."): value
        for name, value in full.items()
        if not re.search(r"roi_heads|rpn|inner_blocks|layer_blocks|fpn_", name)
    }
    out = Writer(lambda: "", lambda: "")
    lateral, output, top, cls, box, logits, deltas = RETINANET_NAMES[source]
    for level in range(3):
        out.layer(lateral(level), PYRAMID, RES2 * 2 ** (level + 1), 1, 1)
        out.layer(output(level), PYRAMID, PYRAMID, 3, 3)
    out.layer(f"{top}p6", PYRAMID, PYRAMID if source == "torchvision" else 8 * RES2, 3, 3)
    out.layer(f"{top}p7", PYRAMID, PYRAMID, 3, 3)
    for number in range(4):
        out.layer(cls(number), PYRAMID, PYRAMID, 3, 3)
        out.layer(box(number), PYRAMID, PYRAMID, 3, 3)
    scores = CLASSES if source == "torchvision" else CLASSES - 1
    out.layer(logits, 9 * scores, PYRAMID, 3, 3)
    out.layer(deltas, 9 * 4, PYRAMID, 3, 3)
    return state | out.state


RETINANET_NAMES: dict[str, tuple[Any, ...]] = {
    "torchvision": (
        lambda level: f"backbone.fpn.inner_blocks.{level}.0",
        lambda level: f"backbone.fpn.layer_blocks.{level}.0",
        "backbone.fpn.extra_blocks.",
        lambda number: f"head.classification_head.conv.{2 * number}",  # as before version 0.15
        lambda number: f"head.regression_head.conv.{number}.0",
        "head.classification_head.cls_logits",
        "head.regression_head.bbox_reg",
    ),
    "detectron2": (
        lambda level: f"backbone.fpn_lateral{level + 3}",
        lambda level: f"backbone.fpn_output{level + 3}",
        "backbone.top_block.",
        lambda number: f"head.cls_subnet.{2 * number}",
        lambda number: f"head.bbox_subnet.{2 * number}",
        "head.cls_score",
        "head.bbox_pred",
    ),
    "maskrcnn-benchmark": (
        lambda level: f"backbone.fpn.fpn_inner{level + 2}",
        lambda level: f"backbone.fpn.fpn_layer{level + 2}",
        "backbone.fpn.top_blocks.",
        lambda number: f"rpn.head.cls_tower.{2 * number}",
        lambda number: f"rpn.head.bbox_tower.{2 * number}",
        "rpn.head.cls_logits",
        "rpn.head.bbox_pred",
    ),
}


def torchvision_fpn() -> State:
    """A body by torchvision's names."""

    def name(stage: int, block: int, place: int, kind: str) -> str:
        last = f"{kind}{place}" if place else f"downsample.{int(kind == 'bn')}"
        return f"backbone.body.layer{stage - 1}.{block}.{last}"

    out = Writer(lambda *at: name(*at, "conv"), lambda *at: name(*at, "bn"))
    out.body(50, ("backbone.body.conv1", "backbone.body.bn1"), range(2, 6))
    return out.state


@pytest.mark.parametrize("source", RETINANET_NAMES)
def test_a_retinanet_file_becomes_a_model(source, tmp_path):
    state = retinanet(source)
    assert source_of(state) == source
    torch.save({"model": state}, tmp_path / "w.pth")
    cfg, model = build_model_from_checkpoint(tmp_path / "w.pth", ["MODEL.DEVICE", "cpu"])
    assert cfg.MODEL.BACKBONE.CONV_BODY == "R-50-FPN-RETINANET"
    assert (source != "torchvision") == cfg.MODEL.RETINANET.USE_C5
    assert cfg.MODEL.RETINANET.NUM_CLASSES == CLASSES
    assert cfg.MODEL.RETINANET.NUM_CONVS == 4
    assert len(model.categories) == CLASSES - 1
    assert model([torch.rand(3, 64, 64)])[0]["boxes"].shape[1] == 4
    _, cls, box = RETINANET_NAMES[source][2:5]
    ours = model.state_dict()
    for number in range(4):
        assert torch.equal(
            ours[f"head.cls_tower.{number}.0.weight"], state[cls(number) + ".weight"]
        )
        assert torch.equal(ours[f"head.bbox_tower.{number}.0.bias"], state[box(number) + ".bias"])


def test_retinanet_anchors_of_a_cell_are_reordered():
    state = retinanet("detectron2")
    model = convert(state, "detectron2").model
    scores = CLASSES - 1
    for size, ratio in product(range(3), range(3)):
        ours, other = ratio * 3 + size, size * 3 + ratio
        for name, theirs, values in (
            ("head.cls_logits.weight", "head.cls_score.weight", scores),
            ("head.bbox_pred.weight", "head.bbox_pred.weight", 4),
        ):
            assert torch.equal(
                model[name][ours * values :][:values], state[theirs][other * values :][:values]
            )


def caffe2_body(norm: str = "bn") -> Writer:
    def conv(stage: int, block: int, place: int) -> str:
        return f"res{stage}_{block}_branch" + (f"2{'abc'[place - 1]}" if place else "1")

    out = Writer(conv, lambda *place: f"{conv(*place)}_{norm}", caffe2=True)
    out.body(50, ("conv1", "res_conv1_bn" if norm == "bn" else "conv1_gn"), range(2, 6))
    return out


def caffe2() -> State:
    out = caffe2_body()
    for stage, block in zip(range(2, 6), (2, 3, 5, 2), strict=True):
        lateral = "" if stage == 5 else "_lateral"
        width = RES2 * 2 ** (stage - 2)
        out.layer(f"fpn_inner_res{stage}_{block}_sum{lateral}", PYRAMID, width, 1, 1)
        out.layer(f"fpn_res{stage}_{block}_sum", PYRAMID, PYRAMID, 3, 3)
    out.layer("conv_rpn_fpn2", PYRAMID, PYRAMID, 3, 3)
    out.layer("rpn_cls_logits_fpn2", 3, PYRAMID, 1, 1)
    out.layer("rpn_bbox_pred_fpn2", 12, PYRAMID, 1, 1)
    out.layer("fc6", DIM, PYRAMID * 49)
    out.layer("fc7", DIM, DIM)
    out.layer("cls_score", CLASSES, DIM)
    out.layer("bbox_pred", 4 * CLASSES, DIM)
    out.state["fc6_w_momentum"] = torch.zeros(1)
    out.state["lr"] = torch.zeros(1)
    return out.state | OF_THE_CLASSIFIER


# Detectron saves what a file that it started from held, used or not.
OF_THE_CLASSIFIER = {"conv1_b": torch.zeros(STEM), "fc1000_w": torch.zeros(10, 4),
                     "fc1000_b": torch.zeros(10), "res2_0_branch2a_b": torch.zeros(4)}  # fmt: skip


def caffe2_c4() -> State:
    out = caffe2_body()
    out.layer("conv_rpn", 4 * RES2, 4 * RES2, 3, 3)
    out.layer("rpn_cls_logits", 15, 4 * RES2, 1, 1)
    out.layer("rpn_bbox_pred", 60, 4 * RES2, 1, 1)
    out.layer("cls_score", CLASSES, 8 * RES2)
    out.layer("bbox_pred", 4 * CLASSES, 8 * RES2)
    out.layer("conv5_mask", 8 * RES2, PYRAMID, 2, 2)
    out.layer("mask_fcn_logits", CLASSES, PYRAMID, 1, 1)
    return out.state | OF_THE_CLASSIFIER


def caffe2_keypoints() -> State:
    out = caffe2_body()
    for number in range(1, 9):
        out.layer(f"conv_fcn{number}", PYRAMID, PYRAMID, 3, 3)
    out.layer("kps_score", 17, 17, 4, 4)
    out.state |= {"kps_score_lowres_w": torch.randn(PYRAMID, 17, 4, 4),
                  "kps_score_lowres_b": torch.randn(17)}  # fmt: skip
    return out.state | caffe2()


FILES = {
    "d2 FPN": (detectron2, "detectron2", "R-50-FPN"),
    "d2 ResNeXt": (lambda: detectron2(101, groups=2), "detectron2", "R-101-FPN"),
    "d2 DC5": (dilated, "detectron2", "R-50-C5"),
    "d2 cascade": (cascade, "detectron2", "R-50-FPN"),
    "d2 cascade of convolutions": (cascade_of_convolutions, "detectron2", "R-50-FPN"),
    "d2 long RPN": (long_rpn, "detectron2", "R-50-FPN"),
    "d2 panoptic": (panoptic, "detectron2", "R-50-FPN"),
    "d2 C4": (lambda: detectron2(fpn=False), "detectron2", "R-50-C4"),
    "mrb FPN": (maskrcnn_benchmark, "maskrcnn-benchmark", "R-50-FPN"),
    "mrb C4": (lambda: maskrcnn_benchmark(False), "maskrcnn-benchmark", "R-50-C4"),
    "caffe2 FPN": (caffe2, "caffe2", "R-50-FPN"),
    "caffe2 C4 masks": (caffe2_c4, "caffe2", "R-50-C4"),
    "caffe2 FPN keypoints": (caffe2_keypoints, "caffe2", "R-50-FPN"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_becomes_a_model(name, tmp_path):
    make, source, body = FILES[name]
    state = make()
    assert source_of({"model": state}) == source
    torch.save({"model": state, "iteration": 7}, tmp_path / "w.pth")
    cfg, model = build_model_from_checkpoint(tmp_path / "w.pth", ["MODEL.DEVICE", "cpu"])
    assert body == cfg.MODEL.BACKBONE.CONV_BODY
    assert cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES == CLASSES
    assert (source != "caffe2" or "masks" in name) == cfg.MODEL.MASK_ON
    assert ("keypoints" in name) == cfg.MODEL.KEYPOINT_ON
    assert len(model.categories) == CLASSES - 1
    found = model([torch.rand(3, 64, 64)])
    assert found[0]["boxes"].shape[1] == 4


def test_resnext_has_its_stride_in_the_3x3_and_its_own_scale():
    settings = convert(detectron2(101, groups=2), "detectron2").settings
    assert settings["MODEL.RESNETS.NUM_GROUPS"] == 2
    assert settings["MODEL.RESNETS.WIDTH_PER_GROUP"] == RES2 // 4
    assert settings["MODEL.RESNETS.STRIDE_IN_1X1"] is False
    assert settings["INPUT.PIXEL_STD"] == [57.375, 57.12, 58.395]


def test_pixels_that_a_file_keeps():
    kept = {
        "pixel_mean": torch.tensor([100.0, 110.5, 120.25]).view(3, 1, 1),
        "pixel_std": torch.tensor([50.0, 51.0, 52.0]).view(3, 1, 1),
    }
    settings = convert(detectron2() | kept, "detectron2").settings
    assert settings["INPUT.PIXEL_MEAN"] == [100.0, 110.5, 120.25]
    assert settings["INPUT.PIXEL_STD"] == [50.0, 51.0, 52.0]


def deformable(state: State, source: str) -> State:
    """With deformable convolutions in res4 and res5, modulated, under the framework's names."""
    out = dict(state)
    for name, value in state.items():
        if source == "detectron2" and re.search(r"\.res[45]\.\d\.conv2\.weight$", name):
            offset = name.replace("conv2.", "conv2_offset.")
        elif source != "detectron2" and re.search(r"\.layer[34]\.\d\.conv2\.weight$", name):
            offset = name.replace("conv2.", "conv2.offset.")
            out[name.replace("conv2.", "conv2.conv.")] = out.pop(name)
        else:
            continue
        out[offset] = torch.randn(27, value.shape[1], 3, 3)
        out[offset.replace("weight", "bias")] = torch.randn(27)
    return out


@pytest.mark.parametrize(
    ("make", "source"), [(detectron2, "detectron2"), (maskrcnn_benchmark, "maskrcnn-benchmark")]
)
def test_deformable_convolution(make, source, tmp_path):
    plain = make()
    state = deformable(plain, source)
    torch.save(state, tmp_path / "w.pth")
    cfg, model = build_model_from_checkpoint(tmp_path / "w.pth", ["MODEL.DEVICE", "cpu"])
    resnets = cfg.MODEL.RESNETS
    assert resnets.STAGE_WITH_DCN == (False, False, True, True)
    assert (resnets.WITH_MODULATED_DCN, resnets.DEFORMABLE_GROUPS) == (True, 1)
    weight = model.state_dict()["backbone.body.res4.1.conv2.conv.weight"]
    [theirs] = [v for n, v in plain.items() if re.search(r"(res4|layer3)\.1\.conv2\.weight$", n)]
    assert torch.equal(weight, theirs)
    assert len(model([torch.rand(3, 64, 64)])) == 1


def test_classifier_gives_a_deformable_body_its_weights(tiny_config, tmp_path):
    narrow = [
        "MODEL.BACKBONE.CONV_BODY", "R-50-FPN", "MODEL.RESNETS.WIDTH_PER_GROUP", 8,
    ]  # fmt: skip
    plain = build_model(tiny_config(*narrow))
    torch.save(classifier(plain), tmp_path / "resnet50.pth")
    dcn = ["MODEL.RESNETS.STAGE_WITH_DCN", (False, False, True, True)]
    model = build_model(tiny_config(*narrow, *dcn))
    load_weights(model, tmp_path / "resnet50.pth")
    state = model.state_dict()
    for block in ("res3.0", "res4.2"):
        ours = f"backbone.body.{block}.conv2.{'conv.' if block == 'res4.2' else ''}weight"
        theirs = plain.state_dict()[f"backbone.body.{block}.conv2.weight"] + 1
        assert torch.equal(state[ours], theirs)
    assert not state["backbone.body.res4.2.conv2.offset.weight"].any()


def test_background_comes_first():
    state = detectron2()
    model = convert(state, "detectron2").model
    for leaf in ("weight", "bias"):
        theirs = state[f"roi_heads.box_predictor.cls_score.{leaf}"]
        ours = model[f"roi_heads.box.predictor.cls_score.{leaf}"]
        assert torch.equal(ours[0], theirs[-1])
        assert torch.equal(ours[1:], theirs[:-1])
        boxes = model[f"roi_heads.box.predictor.bbox_pred.{leaf}"]
        assert torch.equal(boxes[4:], state[f"roi_heads.box_predictor.bbox_pred.{leaf}"])
        masks = model[f"roi_heads.mask.predictor.mask_fcn_logits.{leaf}"]
        assert torch.equal(masks[1:], state[f"roi_heads.mask_head.predictor.{leaf}"])
        assert len(boxes) == 4 * CLASSES
        assert len(masks) == CLASSES


def test_anchors_of_a_cell_are_reordered():
    state = detectron2(fpn=False)
    model = convert(state, "detectron2").model
    theirs = state["proposal_generator.rpn_head.objectness_logits.bias"]
    deltas = state["proposal_generator.rpn_head.anchor_deltas.weight"]
    for size in range(5):
        for ratio in range(3):
            ours, other = ratio * 5 + size, size * 3 + ratio
            assert model["rpn.head.cls_logits.bias"][ours] == theirs[other]
            assert torch.equal(
                model["rpn.head.bbox_pred.weight"][4 * ours : 4 * ours + 4],
                deltas[4 * other : 4 * other + 4],
            )


def test_caffe2_statistics_are_those_of_folded_norms():
    model = convert({"blobs": caffe2()}, "caffe2").model
    assert torch.equal(model["backbone.body.res2.0.norm1.running_mean"], torch.zeros(4))
    assert torch.equal(model["backbone.body.stem.norm1.running_var"], torch.ones(STEM))


@pytest.mark.parametrize("norm", ["folded", "whole", "GN"])
def test_caffe2_classifier_gives_the_body_alone(norm, tiny_config, tmp_path):
    """MSRA's of Detectron, its copy for detectron2, and that with group norm."""
    state = caffe2_body("gn" if norm == "GN" else "bn").state | OF_THE_CLASSIFIER
    if norm == "whole":
        leaves = {"_bn_s": "_bn_gamma", "_bn_b": "_bn_beta"}
        state = {re.sub("_bn_[sb]$", lambda m: leaves[m[0]], n): v for n, v in state.items()}
        gammas = [name for name in state if name.endswith("_bn_gamma")]
        for name in gammas:
            state[name.replace("gamma", "running_mean")] = torch.randn_like(state[name])
            state[name.replace("gamma", "running_var")] = torch.rand_like(state[name])
    torch.save(state, tmp_path / "R-50.pth")
    model = build_model(
        tiny_config(
            "MODEL.BACKBONE.CONV_BODY", "R-50-FPN",
            "MODEL.RESNETS.NORM", "GN" if norm == "GN" else "FrozenBN",
            "MODEL.RESNETS.STEM_OUT_CHANNELS", STEM, "MODEL.RESNETS.RES2_OUT_CHANNELS", RES2,
            "MODEL.RESNETS.WIDTH_PER_GROUP", RES2 // 4, "MODEL.GROUP_NORM.NUM_GROUPS", 4,
        )
    )  # fmt: skip
    load_weights(model, tmp_path / "R-50.pth")
    body = model.backbone.body
    suffix = {"folded": "bn_s", "whole": "bn_gamma", "GN": "gn_s"}[norm]
    shortcut = body.res3[0].downsample[1]
    assert torch.equal(shortcut.weight, state[f"res3_0_branch1_{suffix}"])
    if norm == "whole":
        assert torch.equal(shortcut.running_var, state["res3_0_branch1_bn_running_var"])
    if norm == "folded":
        assert (shortcut.running_var == 1).all()


def classifier(model: torch.nn.Module) -> State:
    """The body of `model` as torchvision's classifiers name it."""
    body = {n: v for n, v in model.state_dict().items() if n.startswith("backbone.body.")}
    names = {n: rename(n, TO_TORCHVISION).removeprefix("backbone.body.") for n in body}
    return {names[n]: v + 1 for n, v in body.items()} | {"fc.weight": torch.zeros(10, 4)}


def test_classifier_gives_the_body_alone(tiny_config, tmp_path):
    model = build_model(tiny_config())
    before = {n: v.clone() for n, v in model.state_dict().items()}
    torch.save(classifier(model), tmp_path / "resnet18.pth")
    load_weights(model, tmp_path / "resnet18.pth")
    for name, value in model.state_dict().items():
        moved = name.startswith("backbone.body.")
        assert torch.equal(value, before[name] + 1 if moved else before[name]), name
    with pytest.raises(CheckpointError, match="has no config"):
        build_model_from_checkpoint(tmp_path / "resnet18.pth")


def test_classifiers_last_stage_goes_into_a_c4_head(tiny_config, tmp_path):
    torch.save(classifier(build_model(tiny_config())), tmp_path / "resnet18.pth")
    content = read_checkpoint(tmp_path / "resnet18.pth")
    model = build_model(tiny_config(c4=True))
    load_weights(model, tmp_path / "resnet18.pth")
    name = "res5.1.conv2.weight"
    found = model.state_dict()[f"roi_heads.box.feature_extractor.{name}"]
    assert torch.equal(found, content["model"][f"backbone.body.{name}"])


def test_classifier_of_another_depth_is_refused(tiny_config, tmp_path):
    state = classifier(build_model(tiny_config()))
    torch.save(state | {"layer1.2.conv1.weight": torch.zeros(1)}, tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match=r"unknown to the model +backbone.body.res2.2.conv1"):
        load_weights(build_model(tiny_config()), tmp_path / "w.pth")


def test_numpy_arrays_and_tensors_are_the_same():
    state = detectron2()
    arrays = {n: v.numpy() for n, v in state.items()}
    ours = convert({"model": arrays, "__author__": "x"}, "detectron2")
    other = convert(state, "detectron2")
    assert ours.settings == other.settings
    assert all(torch.equal(ours.model[n], other.model[n]) for n in other.model)


@pytest.mark.parametrize("fpn", [True, False], ids=["FPN", "C4"])
@torch.no_grad()
def test_fast_rcnn_has_no_proposals_of_its_own(fpn, tmp_path):
    state = detectron2(fpn=fpn)
    fast = {name: v for name, v in state.items() if not name.startswith("proposal_generator.")}
    models = []
    for number, entries in enumerate((state, fast)):
        torch.save({"model": entries}, tmp_path / f"{number}.pth")
        models.append(build_model_from_checkpoint(tmp_path / f"{number}.pth")[1].eval())
    image = torch.rand(3, 64, 96)
    [wanted], [found] = (
        model.roi_heads.candidates(
            model.backbone(model.normalizer([image]).tensor),
            [torch.tensor([[5.0, 5, 50, 50], [10, 20, 90, 60]])],
            [(64, 96)],
            model.limits,
        )
        for model in models
    )
    assert models[1].takes_proposals
    assert torch.equal(found["boxes"], wanted["boxes"])
    assert torch.equal(found["scores"], wanted["scores"])


def test_what_cannot_be_converted(tmp_path):
    state = {n: v for n, v in detectron2().items() if "cls_score" not in n}
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match=r"w\.pth: looks like detectron2's, but .*cls_score"):
        read_checkpoint(tmp_path / "w.pth")
    short = {n: v for n, v in detectron2().items() if ".res3.3." not in n}
    with pytest.raises(ValueError, match=r"\[3, 3, 6, 3\] blocks"):
        convert(short, "detectron2")
    with pytest.raises(ValueError, match="holds no state dict"):
        convert([1, 2], "detectron2")
    with pytest.raises(ValueError, match=r"on a feature pyramid only; this model has no backbone"):
        to_torchvision({})


def test_source_of_what_is_not_theirs():
    assert source_of({"model": {"weight": torch.zeros(1)}}) is None
    assert source_of([np.zeros(1)]) is None
    assert source_of({}) is None


def test_categories_follow_from_their_number():
    assert [c["id"] for c in categories_for(81)][10:13] == [11, 13, 14]
    assert categories_for(91)[11] == {"id": 12, "name": "N/A"}
    assert categories_for(91)[89] == {"id": 90, "name": "toothbrush"}
    assert categories_for(21)[19] == {"id": 20, "name": "tvmonitor"}
    (person,) = categories_for(2, keypoints=True)
    assert (person["id"], person["name"]) == (1, "person")
    assert person["keypoints"][:3] == ["nose", "left_eye", "right_eye"]
    assert (len(person["keypoints"]), person["keypoints"][-1]) == (17, "right_ankle")
    assert categories_for(3) == [{"id": 1, "name": "class 1"}, {"id": 2, "name": "class 2"}]


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("resnet18", ResNetSpec(18, res2_channels=64)),
        ("resnet34", ResNetSpec(34, res2_channels=64)),
        ("resnet101", ResNetSpec(101)),
        ("resnet152", ResNetSpec(152)),
        ("resnext101_32x8d", ResNetSpec(101, groups=32, width_per_group=8)),
        ("resnext101_64x4d", ResNetSpec(101, groups=64, width_per_group=4)),
    ],
)
@pytest.mark.parametrize("source", ["torchvision", "timm"])
def test_every_classifier_of_torchvision_is_a_body(name, spec, source):
    with torch.device("meta"):
        classifier = getattr(torchvision.models, name)().state_dict()
        body = ResNet(spec, (5,)).state_dict()
    assert source_of(classifier) == "torchvision"
    converted = convert(classifier, source)
    assert converted.backbone_only
    assert {n: v.shape for n, v in converted.model.items()} == {
        f"backbone.body.{n}": v.shape for n, v in body.items()
    }


def test_fbnet_of_maskrcnn_benchmark(tiny_config, tmp_path):
    roi = "MODEL.ROI_MASK_HEAD."
    cfg = tiny_config(
        "MODEL.BACKBONE.CONV_BODY", "FBNet", "MODEL.FBNET.SCALE_FACTOR", 0.25,
        "MODEL.RPN.RPN_HEAD", "FBNet.rpn_head", "MODEL.FBNET.DET_HEAD_LAST_SCALE", -1.0,
        "MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR", "FBNet.roi_head",
        "MODEL.ROI_BOX_HEAD.PREDICTOR", "FastRCNNPredictor", roi + "POOLER_RESOLUTION", 6,
        roi + "FEATURE_EXTRACTOR", "FBNet.roi_head_mask", roi + "RESOLUTION", 12,
        roi + "PREDICTOR", "MaskRCNNConv1x1Predictor",
    )  # fmt: skip
    model, other = build_model(cfg), build_model(cfg)
    state = {}
    for name, value in model.state_dict().items():
        name = re.sub(r"^rpn\.head\.head\.", "rpn.head.0.head.", name)
        name = re.sub(r"^rpn\.head\.(cls|bbox)_", r"rpn.head.1.\1_", name)
        name = re.sub(r"\.feature_extractor\.(blocks|last)\.", r".feature_extractor.head.\1.", name)
        state[f"module.{name}"] = value
    torch.save({"model": state}, tmp_path / "fbnet.pth")
    assert source_of(state) == "maskrcnn-benchmark"
    load_weights(other, tmp_path / "fbnet.pth")
    assert len(other.categories) == 3
    for name, value in other.state_dict().items():
        assert torch.equal(value, model.state_dict()[name])
    assert source_of(model.state_dict()) is None  # our own names
    with pytest.raises(CheckpointError, match=r"has no config.*name the YAML file"):
        build_model_from_checkpoint(tmp_path / "fbnet.pth")
    (tmp_path / "fbnet.yaml").write_text(_without(cfg, COUNTING))
    built, other = build_model_from_checkpoint(tmp_path / "fbnet.pth", (), tmp_path / "fbnet.yaml")
    assert built.MODEL.INCLUSIVE_BOXES
    assert other.backbone.body.first.bn.eps == 1e-5  # its norm is not frozen


def _without(cfg: CfgNode, names: Iterable[str]) -> str:
    """A config as a file that leaves out some keys."""
    tree = yaml.safe_load(cfg.dump())
    for name in names:
        *sections, leaf = name.split(".")
        node = tree
        for section in sections:
            node = node[section]
        del node[leaf]
    return yaml.safe_dump(tree)


def _value(cfg: CfgNode, name: str) -> Any:
    for part in name.split("."):
        cfg = cfg[part]
    return cfg


def test_file_of_maskrcnn_benchmark_follows_its_weights(tmp_path):
    weights, file = tmp_path / "w.pth", tmp_path / "e2e.yaml"
    torch.save(maskrcnn_benchmark(), weights)
    cfg, model = build_model_from_checkpoint(weights, ["MODEL.DEVICE", "cpu"])
    file.write_text(_without(cfg, COUNTING))
    found, other = build_model_from_checkpoint(weights, (), file)
    assert {name: _value(found, name) for name in COUNTING} == COUNTING
    image = torch.rand(3, 64, 80)
    [wanted], [ours] = model.detect([image]), other.detect([image])
    assert {name: value.tolist() for name, value in ours.items()} == {
        name: value.tolist() for name, value in wanted.items()
    }
    # without the weights, or with what the file or an override says, nothing changes
    assert not load_config_for_weights(file).MODEL.INCLUSIVE_BOXES
    options = ["MODEL.WEIGHT", str(weights), "INPUT.RESIZE", "round"]
    assert load_config_for_weights(file, options).INPUT.RESIZE == "round"
    file.write_text(_without(cfg, COUNTING.keys() - {"MODEL.RPN.ANCHOR_ROUNDING"}))
    file.write_text(file.read_text().replace("ANCHOR_ROUNDING: cell", "ANCHOR_ROUNDING: none"))
    cfg = load_config_for_weights(file, options)
    assert (cfg.MODEL.RPN.ANCHOR_ROUNDING, cfg.MODEL.INCLUSIVE_BOXES) == ("none", True)


def test_weights_in_a_model_that_counts_otherwise_are_a_warning(tmp_path, caplog):
    torch.save(maskrcnn_benchmark(), tmp_path / "w.pth")
    options = ["MODEL.DEVICE", "cpu", "MODEL.INCLUSIVE_BOXES", False]
    build_model_from_checkpoint(tmp_path / "w.pth", options)
    assert "counts pixels in another way" in caplog.text
    caplog.clear()
    build_model_from_checkpoint(tmp_path / "w.pth", options[:2])
    assert not caplog.text


def test_the_last_head_says_what_the_shared_stage_is():
    """As when maskrcnn-benchmark loads the entries of all heads into the one stage."""
    state = maskrcnn_benchmark(fpn=False)
    [last] = [n for n in state if "mask.feature_extractor" in n and "layer4.2.conv3.weight" in n]
    state[last] = state[last] + 1
    model = convert(state, "maskrcnn-benchmark").model
    assert torch.equal(model["roi_heads.box.feature_extractor.res5.2.conv3.weight"], state[last])
    assert not any(name.startswith("roi_heads.mask.feature_extractor.") for name in model)


def test_nine_anchors_of_a_c4_model():
    state = maskrcnn_benchmark(fpn=False)
    for name in state:
        for layer, kept in (("rpn.head.cls_logits", 9), ("rpn.head.bbox_pred", 36)):
            if layer in name:
                state[name] = state[name][:kept]
    settings = convert(state, "maskrcnn-benchmark").settings
    assert settings["MODEL.RPN.ANCHOR_SIZES"] == [128, 256, 512]
    assert settings["MODEL.RPN.POST_NMS_TOP_N_TEST"] == 300
    five = convert(maskrcnn_benchmark(fpn=False), "maskrcnn-benchmark").settings
    assert "MODEL.RPN.ANCHOR_SIZES" not in five


def test_file_does_not_follow_other_weights(tiny_config, tmp_path):
    (tmp_path / "d2.yaml").write_text(_without(tiny_config(), COUNTING))
    torch.save(detectron2(), tmp_path / "w.pth")
    options = ["MODEL.WEIGHT", str(tmp_path / "w.pth")]
    plain = load_config(tmp_path / "d2.yaml", options)
    assert load_config_for_weights(tmp_path / "d2.yaml", options) == plain
