"""State dicts of every framework become models."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest
import torch
from states import (
    CLASSES,
    RES2,
    RETINANET_NAMES,
    STEM,
    c4_keypoints,
    caffe2,
    caffe2_c4,
    caffe2_keypoints,
    cascade,
    cascade_of_convolutions,
    deformable,
    detectron2,
    dilated,
    long_rpn,
    maskrcnn_benchmark,
    panoptic,
    retinanet,
)

from detlite.conversion import convert, source_of, to_torchvision
from detlite.engine.checkpoint import CheckpointError, read_checkpoint
from detlite.engine.weights import (
    build_model_from_checkpoint,
)


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
    "mrb C4 keypoints": (lambda: c4_keypoints(False), "maskrcnn-benchmark", "R-50-C4"),
    "mrb C4 keypoints, shared": (lambda: c4_keypoints(True), "maskrcnn-benchmark", "R-50-C4"),
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
