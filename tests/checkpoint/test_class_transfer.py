"""Transfer the weights of classes by name to a model with other categories."""

from copy import deepcopy

import pytest
import torch

from detlite.checkpoint.class_transfer import transfer_classes
from detlite.checkpoint.contents import Checkpoint
from detlite.checkpoint.loading import load_weights
from detlite.modeling.build import build_model
from detlite.structures.categories import CategoryMatch
from tests.modeling.family import RETINANET

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


def load(source, target, categories=SOURCE, reinit_heads=True):
    """Load the weights of `source` into `target`; return both states, and that before."""
    before = deepcopy(target.state_dict())
    load_weights(target, Checkpoint("w.pth", source.state_dict(), categories), reinit_heads)
    return before, target.state_dict(), source.state_dict()


def assert_rows(before, after, source, rows):
    """Check that the rows of each class are those of the same class in the source, or unchanged."""
    before, after, source = (value.unflatten(0, (-1, rows)) for value in (before, after, source))
    for label in range(len(TARGET) + 1):
        expected = source[SHARED[label]] if label in SHARED else before[label]
        assert torch.equal(after[label], expected)


@pytest.mark.parametrize(("c4", "agnostic"), [(False, False), (False, True), (True, False)])
def test_mask_rcnn(tiny_config, caplog, c4, agnostic):
    opts = "MODEL.MASK_ON", True, "MODEL.CLS_AGNOSTIC_BBOX_REG", agnostic
    source, target = two_models(tiny_config, *opts, c4=c4)
    before, after, state = load(source, target)
    rows = {"cls_score": 1, "bbox_pred": 4, "mask_fcn_logits": 1}
    if agnostic:
        del rows["bbox_pred"]
    for name, value in after.items():
        if (layer := name.split(".")[-2]) in rows and name.startswith("roi_heads."):
            assert_rows(before[name], value, state[name], rows[layer])
        else:
            assert torch.equal(value, state[name]), name
    assert target.categories == TARGET
    message = "categories matched by name: Dog, PERSON; only in the weights: car, cat; only in"
    assert message in caplog.text


def test_class_agnostic_boxes_of_a_single_class(tiny_config):
    """The number of rows equals that of a model with boxes for each class."""
    opts = "MODEL.CLS_AGNOSTIC_BBOX_REG", True, "MODEL.ROI_HEADS.CASCADE_IOUS", (0.5, 0.6, 0.7)
    sets = ([{"id": 1, "name": "cell"}], [{"id": 1, "name": "nucleus"}])
    source, target = two_models(tiny_config, *opts, sets=sets)
    before, after, state = load(source, target, sets[0])
    boxes = [name for name in after if name.endswith("predictor.bbox_pred.weight")]
    assert len(boxes) == 3
    for name in boxes:
        assert len(after[name]) == 8
        assert torch.equal(after[name], state[name])
        scores = name.replace("bbox_pred", "cls_score")
        assert torch.equal(after[scores][0], state[scores][0])
        assert torch.equal(after[scores][1], before[scores][1])


def test_retinanet(tiny_config):
    opts = [item for pair in RETINANET.items() for item in pair]
    source, target = two_models(tiny_config, *opts, key="MODEL.RETINANET.NUM_CLASSES")
    anchors = len(target.state_dict()["head.bbox_pred.bias"]) // 4
    before, after, scores = (
        state["head.cls_logits.weight"].unflatten(0, (anchors, -1))
        for state in load(source, target)
    )
    for label in (1, 2, 3):  # without a background
        shared = scores[:, SHARED[label] - 1] if label in SHARED else before[:, label - 1]
        assert torch.equal(after[:, label - 1], shared)


def test_custom_detector_with_a_layer_named_like_one_of_retinanet():
    model = torch.nn.Sequential()
    model.head = torch.nn.ModuleDict({"cls_logits": torch.nn.Linear(4, 2)})
    match = CategoryMatch([{"name": "cat"}], [{"name": "dog"}])
    assert transfer_classes(model.state_dict(), model, match) == {}


@pytest.mark.parametrize("reinit_heads", [False, True])
@pytest.mark.parametrize(
    ("categories", "rows", "others"),
    [
        ([{"id": 9, "name": "truck"}, *SOURCE[:3]], [2, 3, 4], [1, 2, 3]),
        ([SOURCE[3], SOURCE[0]], [1, 2], [4, 1]),
        ([{"name": f"other {n}"} for n in range(4)], [1, 2, 3, 4], [1, 2, 3, 4]),
    ],
)
def test_rows_are_matched_by_name_if_any_name_is_known(
    tiny_config, caplog, reinit_heads, categories, rows, others
):
    source, target = two_models(tiny_config, sets=(SOURCE, categories))
    _, after, state = load(source, target, reinit_heads=reinit_heads)
    name = "roi_heads.box.predictor.cls_score.weight"
    unknown = categories[0]["name"] == "other 0"
    same = torch.equal(after[name][rows], state[name][others])
    assert same == (not unknown or not reinit_heads)
    assert ("Its weights are used in the same order; set" in caplog.text) == (unknown and same)
    if categories[0]["name"] == "truck":
        message = "matched by name: person, car, cat; only in the weights: dog; only in"
        assert message in caplog.text


def test_without_names(tiny_config, caplog):
    source, target = two_models(tiny_config)
    before, after, _ = load(source, target, categories=[])
    name = "roi_heads.box.predictor.cls_score.weight"
    assert torch.equal(after[name], before[name])
    assert "newly initialized layers: roi_heads.box.predictor.cls_score.weight" in caplog.text
    assert target.categories == TARGET
