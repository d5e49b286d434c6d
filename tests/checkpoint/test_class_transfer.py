"""Transfer the weights of classes by name to a model with other categories."""

from copy import deepcopy

import pytest
import torch

from detlite.checkpoint.class_transfer import transfer_classes
from detlite.checkpoint.files import Checkpoint
from detlite.checkpoint.loading import load_weights
from detlite.modeling.build import build_model
from detlite.structures.categories import CategoryMatch

SOURCE = [{"id": n, "name": name} for n, name in enumerate(("person", "car", "cat", "dog"), 1)]
TARGET = [{"id": 3, "name": "cell"}, {"id": 5, "name": " Dog"}, {"id": 6, "name": "PERSON"}]
# Label of the model -> label of the checkpoint; 0 is the background.
SHARED = {0: 0, 2: 4, 3: 1}


def two_models(
    tiny_config, *opts, key="MODEL.ROI_BOX_HEAD.NUM_CLASSES", sets=(SOURCE, TARGET), **kinds
):
    """Build models of the categories SOURCE and TARGET with random weights."""
    models = []
    for categories in sets:
        model = build_model(tiny_config(*opts, key, len(categories) + 1, **kinds))
        for value in model.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.rand_like(value))
        model.categories = categories
        models.append(model)
    return models


def load(source, target, tmp_path, categories=SOURCE):
    """Load the weights of `source` into `target`; return its state before and after."""
    before = deepcopy(target.state_dict())
    checkpoint = Checkpoint(tmp_path / "w.pth", source.state_dict(), categories)
    load_weights(target, checkpoint, reinit_heads=True)
    return before, target.state_dict()


def assert_rows(before, after, source, rows):
    """Check that the rows of each class are those of the same class in the source, or unchanged."""
    for label in range(len(TARGET) + 1):
        own = slice(label * rows, (label + 1) * rows)
        if label in SHARED:
            other = slice(SHARED[label] * rows, (SHARED[label] + 1) * rows)
            assert torch.equal(after[own], source[other])
        else:
            assert torch.equal(after[own], before[own])


@pytest.mark.parametrize("c4", [False, True])
def test_mask_rcnn(tiny_config, tmp_path, caplog, c4):
    source, target = two_models(tiny_config, "MODEL.MASK_ON", True, c4=c4)
    before, after = load(source, target, tmp_path)
    source_state = source.state_dict()
    layers = {"box.predictor.cls_score": 1, "box.predictor.bbox_pred": 4,
              "mask.predictor.mask_fcn_logits": 1}  # fmt: skip
    by_class = {
        f"roi_heads.{n}.{kind}": r for n, r in layers.items() for kind in ("weight", "bias")
    }
    for name, value in after.items():
        if name in by_class:
            assert_rows(before[name], value, source_state[name], by_class[name])
        else:
            assert torch.equal(value, source_state[name]), name
    assert target.categories == TARGET
    assert (
        "categories matched by name: Dog, PERSON; only in the weights: car, cat; only in"
        in caplog.text
    )


def test_class_agnostic_boxes_are_loaded(tiny_config, tmp_path):
    source, target = two_models(tiny_config, "MODEL.CLS_AGNOSTIC_BBOX_REG", True)
    before, after = load(source, target, tmp_path)
    boxes, scores = (f"roi_heads.box.predictor.{n}.weight" for n in ("bbox_pred", "cls_score"))
    assert torch.equal(after[boxes], source.state_dict()[boxes])
    assert_rows(before[scores], after[scores], source.state_dict()[scores], 1)


@pytest.mark.parametrize("cascade", [False, True])
def test_class_agnostic_boxes_of_a_single_class(tiny_config, tmp_path, cascade):
    """The number of rows equals that of a model with boxes for each class."""
    opts = ["MODEL.CLS_AGNOSTIC_BBOX_REG", True]
    if cascade:
        opts += ["MODEL.ROI_HEADS.CASCADE_IOUS", (0.5, 0.6, 0.7)]
    sets = ([{"id": 1, "name": "cell"}], [{"id": 1, "name": "nucleus"}])
    source, target = two_models(tiny_config, *opts, sets=sets)
    before, after = load(source, target, tmp_path, sets[0])
    source_state = source.state_dict()
    boxes = [name for name in after if name.endswith("predictor.bbox_pred.weight")]
    assert len(boxes) == (3 if cascade else 1)
    for name in boxes:
        assert len(after[name]) == 8
        assert torch.equal(after[name], source_state[name])
        scores = name.replace("bbox_pred", "cls_score")
        assert torch.equal(after[scores][0], source_state[scores][0])
        assert torch.equal(after[scores][1], before[scores][1])


def test_retinanet(tiny_config, tmp_path):
    source, target = two_models(
        tiny_config, "MODEL.META_ARCHITECTURE", "RetinaNet",
        "MODEL.BACKBONE.CONV_BODY", "R-18-FPN-RETINANET", "MODEL.RETINANET.NUM_CONVS", 1,
        "MODEL.MASK_ON", False,
        key="MODEL.RETINANET.NUM_CLASSES",
    )  # fmt: skip
    before, after = load(source, target, tmp_path)
    name = "head.cls_logits.weight"
    anchors = len(after["head.bbox_pred.bias"]) // 4
    result, before_load = (
        state[name].unflatten(0, (anchors, len(TARGET))) for state in (after, before)
    )
    source_scores = source.state_dict()[name].unflatten(0, (anchors, len(SOURCE)))
    for label in (1, 2, 3):  # without a background
        expected = (
            source_scores[:, SHARED[label] - 1] if label in SHARED else before_load[:, label - 1]
        )
        assert torch.equal(result[:, label - 1], expected)


def test_custom_detector_with_a_layer_named_like_one_of_retinanet():
    model = torch.nn.Sequential()
    model.head = torch.nn.ModuleDict({"cls_logits": torch.nn.Linear(4, 2)})
    match = CategoryMatch([{"name": "cat"}], [{"name": "dog"}])
    assert transfer_classes(model.state_dict(), model, match) == {}


@pytest.mark.parametrize("reinit_heads", [False, True])
def test_rows_are_matched_by_name_if_any_name_is_known(tiny_config, tmp_path, caplog, reinit_heads):
    source, _ = two_models(tiny_config)
    checkpoint = Checkpoint(tmp_path / "w.pth", source.state_dict(), SOURCE)
    name = "roi_heads.box.predictor.cls_score.weight"
    for categories in ([{"id": 9, "name": "truck"}, *SOURCE[:3]], [SOURCE[3], SOURCE[0]]):
        classes = len(categories) + 1
        target = build_model(tiny_config("MODEL.ROI_BOX_HEAD.NUM_CLASSES", classes))
        target.categories = categories
        load_weights(target, checkpoint, reinit_heads)
        rows = [2, 3, 4] if classes == 5 else [1, 2]
        others = [1, 2, 3] if classes == 5 else [4, 1]
        assert torch.equal(target.state_dict()[name][rows], source.state_dict()[name][others])
    assert "matched by name: person, car, cat; only in the weights: dog; only in" in caplog.text
    target = build_model(tiny_config("MODEL.ROI_BOX_HEAD.NUM_CLASSES", 5))
    target.categories = [{"name": f"other {n}"} for n in range(4)]
    load_weights(target, checkpoint, reinit_heads)
    same = torch.equal(target.state_dict()[name][1:], source.state_dict()[name][1:])
    assert same == (not reinit_heads)
    assert ("Its weights are used in the same order; set" in caplog.text) == same


def test_without_names(tiny_config, tmp_path, caplog):
    source, target = two_models(tiny_config)
    before, after = load(source, target, tmp_path, categories=[])
    name = "roi_heads.box.predictor.cls_score.weight"
    assert torch.equal(after[name], before[name])
    assert "newly initialized layers: roi_heads.box.predictor.cls_score.weight" in caplog.text
    assert target.categories == TARGET
