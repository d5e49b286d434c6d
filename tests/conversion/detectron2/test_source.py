"""Conversion of detectron2: layout and config."""

from itertools import product

import pytest
import torch
import yaml

from detlite.checkpoint.loading import build_model_from_checkpoint
from detlite.conversion.convert import convert
from detlite.conversion.detectron2.source import order_anchors_by_ratio
from detlite.errors import CheckpointError
from detlite.modeling.preprocessing import prepare_proposals
from tests.conversion.recorded_state_dicts import CLASSES, RES2, state_dict


@pytest.mark.parametrize(
    ("anchors", "ratios", "order"),
    [
        (3, None, [0, 1, 2]),
        (6, None, [0, 3, 1, 4, 2, 5]),  # two sizes of three ratios
        (5, None, [0, 1, 2, 3, 4]),  # one size of five
        (8, 4, [0, 4, 1, 5, 2, 6, 3, 7]),
        (6, 6, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_order_of_anchors(anchors, ratios, order):
    state = {
        "rpn.head.cls_logits.weight": torch.randn(anchors, 7, 1, 1),
        "rpn.head.cls_logits.bias": torch.randn(anchors),
        "rpn.head.bbox_pred.weight": torch.randn(4 * anchors, 7, 1, 1),
        "rpn.head.bbox_pred.bias": torch.randn(4 * anchors),
    }
    before = dict(state)
    order_anchors_by_ratio(state, ratios)
    for name, values in before.items():
        expected = values.unflatten(0, (anchors, -1))[order].flatten(0, 1)
        assert torch.equal(state[name], expected), name


def test_dilated_c5():
    state = state_dict("detectron2, DC5")
    converted = convert(state, "detectron2")
    config = yaml.safe_load(converted.config)
    assert config["MODEL.BACKBONE.CONV_BODY"] == "R-50-C5"
    assert config["MODEL.RESNETS.RES5_DILATION"] == 2
    assert config["MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION"] == 7
    assert config["MODEL.ROI_MASK_HEAD.RESOLUTION"] == 28
    assert config["MODEL.RPN.PRE_NMS_TOP_N_TEST"] == 6000
    fc1 = state["roi_heads.box_head.fc1.weight"]
    assert torch.equal(converted.model["roi_heads.box.feature_extractor.fc6.weight"], fc1)


def test_cascade(tmp_path):
    state = state_dict("detectron2, cascade")
    torch.save(state, tmp_path / "w.pth")
    cfg, model = build_model_from_checkpoint(tmp_path / "w.pth", ["MODEL.DEVICE", "cpu"])
    assert cfg.MODEL.ROI_HEADS.CASCADE_IOUS == (0.5, 0.6, 0.7)
    assert [stage.box_coder.weights.tolist() for stage in model.roi_heads.box.stages] == [
        [10, 10, 5, 5], [20, 20, 10, 10], [30, 30, 15, 15],
    ]  # fmt: skip
    converted = model.state_dict()
    for stage in range(3):
        original = state[f"roi_heads.box_predictor.{stage}.cls_score.weight"]
        assert torch.equal(converted[f"roi_heads.box.{stage}.predictor.cls_score.weight"][1:],
                           original[:-1])  # fmt: skip
        boxes = converted[f"roi_heads.box.{stage}.predictor.bbox_pred.bias"]
        assert torch.equal(boxes[4:], state[f"roi_heads.box_predictor.{stage}.bbox_pred.bias"])


def test_anchors_of_a_retinanet_are_reordered():
    state = state_dict("detectron2, RetinaNet")
    model = convert(state, "detectron2").model
    scores = CLASSES - 1
    for size, ratio in product(range(3), range(3)):
        converted, other = ratio * 3 + size, size * 3 + ratio
        for name, original, values in (
            ("head.cls_logits.weight", "head.cls_score.weight", scores),
            ("head.bbox_pred.weight", "head.bbox_pred.weight", 4),
        ):
            assert torch.equal(
                model[name][converted * values :][:values],
                state[original][other * values :][:values],
            )


def test_stride_and_pixel_std_of_resnext():
    config = yaml.safe_load(convert(state_dict("detectron2, X-101-FPN"), "detectron2").config)
    assert config["MODEL.RESNETS.NUM_GROUPS"] == 2
    assert config["MODEL.RESNETS.WIDTH_PER_GROUP"] == RES2 // 4
    assert config["MODEL.RESNETS.STRIDE_IN_1X1"] is False
    assert config["INPUT.PIXEL_STD"] == [57.375, 57.12, 58.395]


def test_stored_pixel_statistics():
    statistics = {
        "pixel_mean": torch.tensor([100.0, 110.5, 120.25]).view(3, 1, 1),
        "pixel_std": torch.tensor([50.0, 51.0, 52.0]).view(3, 1, 1),
    }
    config = yaml.safe_load(
        convert(state_dict("detectron2, FPN") | statistics, "detectron2").config
    )
    assert config["INPUT.PIXEL_MEAN"] == [100.0, 110.5, 120.25]
    assert config["INPUT.PIXEL_STD"] == [50.0, 51.0, 52.0]


def test_background_is_moved_first():
    state = state_dict("detectron2, FPN")
    model = convert(state, "detectron2").model
    for leaf in ("weight", "bias"):
        original = state[f"roi_heads.box_predictor.cls_score.{leaf}"]
        converted = model[f"roi_heads.box.predictor.cls_score.{leaf}"]
        assert torch.equal(converted[0], original[-1])
        assert torch.equal(converted[1:], original[:-1])
        boxes = model[f"roi_heads.box.predictor.bbox_pred.{leaf}"]
        assert torch.equal(boxes[4:], state[f"roi_heads.box_predictor.bbox_pred.{leaf}"])
        masks = model[f"roi_heads.mask.predictor.mask_fcn_logits.{leaf}"]
        assert torch.equal(masks[1:], state[f"roi_heads.mask_head.predictor.{leaf}"])
        assert len(boxes) == 4 * CLASSES
        assert len(masks) == CLASSES


def test_anchors_of_an_rpn_are_reordered():
    state = state_dict("detectron2, C4")
    model = convert(state, "detectron2").model
    original = state["proposal_generator.rpn_head.objectness_logits.bias"]
    deltas = state["proposal_generator.rpn_head.anchor_deltas.weight"]
    for size in range(5):
        for ratio in range(3):
            converted, other = ratio * 5 + size, size * 3 + ratio
            assert model["rpn.head.cls_logits.bias"][converted] == original[other]
            assert torch.equal(
                model["rpn.head.bbox_pred.weight"][4 * converted : 4 * converted + 4],
                deltas[4 * other : 4 * other + 4],
            )


@pytest.mark.parametrize("fpn", [True, False], ids=["FPN", "C4"])
@torch.no_grad()
def test_fast_rcnn_needs_proposals(fpn, tmp_path):
    state = state_dict(f"detectron2, {'FPN' if fpn else 'C4'}")
    fast = {name: v for name, v in state.items() if not name.startswith("proposal_generator.")}
    models = []
    for number, entries in enumerate((state, fast)):
        torch.save({"model": entries}, tmp_path / f"{number}.pth")
        models.append(build_model_from_checkpoint(tmp_path / f"{number}.pth")[1].eval())
    image = torch.rand(3, 64, 96)
    boxes = torch.tensor([[5.0, 5, 50, 50], [10, 20, 90, 60]])
    proposals = prepare_proposals([boxes], 1)
    images = models[0].normalizer([image])
    expected, detections = (
        model.roi_heads.box.predict(model.backbone(images.pixels), proposals, images.sizes, False)
        for model in models
    )
    assert models[1].takes_proposals
    assert detections.valid.any()
    assert torch.equal(detections.boxes, expected.boxes)
    assert torch.equal(detections.scores, expected.scores)


def test_fcos():
    state = state_dict("detectron2, RetinaNet") | {"head.ctrness.weight": torch.zeros(1, 8, 3, 3)}
    with pytest.raises(ValueError, match="detectron2's, but it is an FCOS"):
        convert(state, "detectron2")


def test_class_agnostic_masks_are_repeated():
    state = state_dict("detectron2, FPN")
    for name in ("roi_heads.mask_head.predictor.weight", "roi_heads.mask_head.predictor.bias"):
        state[name] = state[name][:1]
    model = convert(state, "detectron2").model
    for leaf in ("weight", "bias"):
        converted = model[f"roi_heads.mask.predictor.mask_fcn_logits.{leaf}"]
        assert len(converted) == CLASSES
        assert (converted[1:] == state[f"roi_heads.mask_head.predictor.{leaf}"]).all()


def test_towers_that_start_with_a_norm(tmp_path):
    state = state_dict("detectron2, RetinaNet GN")
    for tower in ("cls", "bbox"):
        del state[f"head.{tower}_subnet.0.weight"]
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match="does not fit the model"):
        build_model_from_checkpoint(tmp_path / "w.pth", ["MODEL.GROUP_NORM.NUM_GROUPS", 4])
