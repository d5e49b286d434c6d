"""Heads that take over, class by class, what a checkpoint of other categories knows."""

from __future__ import annotations

import pytest
import torch

from detlite.conversion.checkpoint.class_transfer import ClassTransfer
from detlite.conversion.checkpoint.files import Checkpoint
from detlite.conversion.checkpoint.loading import load_weights
from detlite.modeling.build import build_model

THEIRS = [{"id": n, "name": name} for n, name in enumerate(("person", "car", "cat", "dog"), 1)]
OURS = [{"id": 3, "name": "cell"}, {"id": 5, "name": " Dog"}, {"id": 6, "name": "PERSON"}]
# Label of ours -> label of theirs; 0 is the background.
SHARED = {0: 0, 2: 4, 3: 1}


def two_models(
    tiny_config, *opts, key="MODEL.ROI_BOX_HEAD.NUM_CLASSES", sets=(THEIRS, OURS), **kinds
):
    """A model of THEIRS and one of OURS, every number of which differs."""
    models = []
    for categories in sets:
        model = build_model(tiny_config(*opts, key, len(categories) + 1, **kinds))
        for value in model.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.rand_like(value))
        model.categories = categories
        models.append(model)
    return models


def loaded(theirs, ours, tmp_path, categories=THEIRS):
    """The state of `ours` before and after it is given the weights of `theirs`."""
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    checkpoint = Checkpoint(tmp_path / "w.pth", theirs.state_dict(), categories)
    load_weights(ours, checkpoint, reinit_heads=True)
    return before, ours.state_dict()


def assert_rows(before, after, source, rows):
    """`rows` of each class come from the same class of the source, or stay."""
    for label in range(len(OURS) + 1):
        own = slice(label * rows, (label + 1) * rows)
        if label in SHARED:
            other = slice(SHARED[label] * rows, (SHARED[label] + 1) * rows)
            assert torch.equal(after[own], source[other])
        else:
            assert torch.equal(after[own], before[own])


@pytest.mark.parametrize("c4", [False, True])
def test_rows_of_a_mask_rcnn(tiny_config, tmp_path, caplog, c4):
    theirs, ours = two_models(tiny_config, "MODEL.MASK_ON", True, c4=c4)
    before, after = loaded(theirs, ours, tmp_path)
    source = theirs.state_dict()
    layers = {"box.predictor.cls_score": 1, "box.predictor.bbox_pred": 4}
    layers["mask.predictor.mask_fcn_logits"] = 1
    by_class = {
        f"roi_heads.{n}.{kind}": r for n, r in layers.items() for kind in ("weight", "bias")
    }
    for name, value in after.items():
        if name in by_class:
            assert_rows(before[name], value, source[name], by_class[name])
        else:
            assert torch.equal(value, source[name]), name
    assert ours.categories == OURS
    assert "taken over by name: Dog, PERSON; begin anew: cell" in caplog.text


def test_boxes_that_are_the_same_for_all_classes_are_kept(tiny_config, tmp_path):
    theirs, ours = two_models(tiny_config, "MODEL.CLS_AGNOSTIC_BBOX_REG", True)
    before, after = loaded(theirs, ours, tmp_path)
    boxes, scores = (f"roi_heads.box.predictor.{n}.weight" for n in ("bbox_pred", "cls_score"))
    assert torch.equal(after[boxes], theirs.state_dict()[boxes])
    assert_rows(before[scores], after[scores], theirs.state_dict()[scores], 1)


@pytest.mark.parametrize("cascade", [False, True])
def test_boxes_that_are_the_same_for_all_are_kept_if_all_are_one(tiny_config, tmp_path, cascade):
    """Then they have as many rows as those of the background and of one class."""
    opts = ["MODEL.CLS_AGNOSTIC_BBOX_REG", True]
    if cascade:
        opts += ["MODEL.ROI_HEADS.CASCADE_IOUS", (0.5, 0.6, 0.7)]
    sets = ([{"id": 1, "name": "cell"}], [{"id": 1, "name": "nucleus"}])
    theirs, ours = two_models(tiny_config, *opts, sets=sets)
    before, after = loaded(theirs, ours, tmp_path, sets[0])
    source = theirs.state_dict()
    boxes = [name for name in after if name.endswith("predictor.bbox_pred.weight")]
    assert len(boxes) == (3 if cascade else 1)
    for name in boxes:
        assert len(after[name]) == 8
        assert torch.equal(after[name], source[name])
        scores = name.replace("bbox_pred", "cls_score")
        assert torch.equal(after[scores][0], source[scores][0])
        assert torch.equal(after[scores][1], before[scores][1])


def test_rows_of_a_retinanet_are_those_of_each_anchor(tiny_config, tmp_path):
    theirs, ours = two_models(
        tiny_config, "MODEL.META_ARCHITECTURE", "RetinaNet",
        "MODEL.BACKBONE.CONV_BODY", "R-18-FPN-RETINANET", "MODEL.RETINANET.NUM_CONVS", 1,
        "MODEL.MASK_ON", False,
        key="MODEL.RETINANET.NUM_CLASSES",
    )  # fmt: skip
    before, after = loaded(theirs, ours, tmp_path)
    name = "head.cls_logits.weight"
    anchors = len(after["head.bbox_pred.bias"]) // 4
    found, own = (state[name].unflatten(0, (anchors, len(OURS))) for state in (after, before))
    source = theirs.state_dict()[name].unflatten(0, (anchors, len(THEIRS)))
    for label in (1, 2, 3):  # without a background
        wanted = source[:, SHARED[label] - 1] if label in SHARED else own[:, label - 1]
        assert torch.equal(found[:, label - 1], wanted)


def test_the_same_number_of_other_classes(tiny_config, tmp_path, caplog):
    theirs, ours = two_models(tiny_config, "MODEL.ROI_BOX_HEAD.NUM_CLASSES", 4)
    ours = build_model(tiny_config("MODEL.ROI_BOX_HEAD.NUM_CLASSES", 5))
    ours.categories = [{"id": 9, "name": "truck"}, *THEIRS[:3]]
    checkpoint = Checkpoint(tmp_path / "w.pth", theirs.state_dict(), THEIRS)
    load_weights(ours, checkpoint)
    assert "MODEL.REINIT_HEADS True takes them by name" in caplog.text
    ours.categories = [{"id": 9, "name": "truck"}, *THEIRS[:3]]
    load_weights(ours, checkpoint, reinit_heads=True)
    name = "roi_heads.box.predictor.cls_score.weight"
    assert torch.equal(ours.state_dict()[name][2:], theirs.state_dict()[name][1:4])
    assert "taken over by name: person, car, cat; begin anew: truck" in caplog.text


@pytest.mark.parametrize("categories", [THEIRS, [dict(row, id=90 - row["id"]) for row in THEIRS]])
def test_the_same_names_are_no_difference(categories):
    assert not ClassTransfer(THEIRS, categories).differ
    assert ClassTransfer(THEIRS, categories[::-1]).differ
    assert not ClassTransfer([], categories).differ
    assert not ClassTransfer(THEIRS, []).differ


def test_without_names_all_rows_begin_anew(tiny_config, tmp_path, caplog):
    theirs, ours = two_models(tiny_config)
    before, after = loaded(theirs, ours, tmp_path, categories=[])
    name = "roi_heads.box.predictor.cls_score.weight"
    assert torch.equal(after[name], before[name])
    assert "layers initialised anew: roi_heads.box.predictor.cls_score.weight" in caplog.text
    assert ours.categories == OURS


def test_many_names_are_shortened():
    ours = [{"name": f"category number {n}"} for n in range(1000)]
    assert len(str(ClassTransfer(THEIRS, ours))) < 600
