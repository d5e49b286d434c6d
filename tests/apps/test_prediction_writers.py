"""Exports to other tools, and compatibility with other libraries."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from pycocotools.cocoeval import COCOeval

from detlite.apps.prediction_writers import to_pandas, to_supervision
from detlite.config import ConfigError
from detlite.evaluation.detection_results import coco_results
from detlite.inference.predictor import Prediction, Predictor
from detlite.modeling.build import build_model
from detlite.structures.masks.formats import encode_bitmap
from tests.builders import coco_content, make_coco

SIZE = (40, 60)  # height, width


def draw_mask(kind):
    """Draw a mask of two parts, one with a hole, or one part, or nothing."""
    image = Image.new("1", SIZE[::-1])
    draw = ImageDraw.Draw(image)
    if kind != "empty":
        draw.ellipse((5, 5, 25, 30), fill=1)
    if kind == "parts":
        draw.ellipse((10, 12, 18, 22), fill=0)
        draw.polygon([(40, 3), (58, 20), (35, 38)], fill=1)
    return np.array(image)


@pytest.fixture
def prediction():
    """Prediction of three objects, the last one with an empty mask."""
    masks = torch.from_numpy(np.stack([draw_mask(kind) for kind in ("parts", "one", "empty")]))
    return Prediction(
        size=SIZE,
        boxes=torch.tensor([[5.0, 3, 59, 39], [5, 5, 26, 31], [30, 8, 42, 20]]),
        labels=torch.tensor([2, 1, 1]),
        scores=torch.tensor([0.9, 0.8, 0.25]),
        category_ids=[70, 5, 5],
        names=["tall & thin", "cell", "cell"],
        masks=masks,
    )


@pytest.fixture
def with_keypoints(prediction):
    """The same prediction without masks, but with two keypoints per object."""
    points = torch.tensor([[[10.0, 8, 1], [30, 20, 1]]] * 3)
    rest = {name: value for name, value in prediction.items() if name != "masks"}
    return Prediction(**rest, keypoints=points, keypoints_scores=torch.zeros(3, 2))


def as_rles(prediction):
    masks = [encode_bitmap(mask.numpy()) for mask in prediction["masks"]]
    return Prediction({**prediction, "masks": masks})


def test_areas_of_masks_and_rles(prediction):
    pytest.importorskip("pandas")
    expected = prediction["masks"].sum(dim=(1, 2)).tolist()
    for one in (prediction, as_rles(prediction)):
        assert to_pandas(one)["area"].tolist() == expected


class TestSupervision:
    @pytest.mark.parametrize("rle", [False, True])
    def test_detections(self, prediction, rle):
        supervision = pytest.importorskip("supervision")
        detections = (as_rles(prediction) if rle else prediction).to_supervision()
        assert isinstance(detections, supervision.Detections)
        assert detections.xyxy.tolist() == prediction["boxes"].tolist()
        assert detections.class_id.tolist() == [1, 0, 0]
        assert detections.confidence.tolist() == pytest.approx([0.9, 0.8, 0.25])
        assert detections["class_name"].tolist() == prediction["names"]
        assert detections["category_id"].tolist() == [70, 5, 5]
        assert np.array_equal(detections.mask, prediction["masks"].numpy())
        assert detections[detections.confidence > 0.5].mask.shape == (2, *SIZE)

    def test_boxes_and_keypoints(self, with_keypoints):
        pytest.importorskip("supervision")
        detections = to_supervision(with_keypoints)
        assert detections.mask is None
        assert detections["keypoints"].tolist() == with_keypoints["keypoints"].tolist()

    def test_a_missing_package_is_named(self, prediction, monkeypatch):
        monkeypatch.setitem(sys.modules, "supervision", None)
        with pytest.raises(ConfigError, match=r"pip install 'detlite\[supervision\]'"):
            prediction.to_supervision()


@pytest.fixture
def model(tiny_config):
    model = build_model(tiny_config("MODEL.ROI_HEADS.SCORE_THRESH", 0.0)).eval()
    model.categories = [{"id": 10 * k, "name": f"kind {k}"} for k in (1, 2, 3)]
    torch.nn.init.normal_(model.roi_heads.mask.predictor.mask_fcn_logits.weight, std=0.5)
    return model


@pytest.fixture
def images():
    return [torch.randint(0, 255, (3, *size), dtype=torch.uint8) for size in ((64, 96), (80, 64))]


def ground_truth_for(predictions):
    """Return ground truth that every third detection matches."""
    return [
        {"boxes": one["boxes"][::3] + torch.tensor([0.0, 0, 2, 1]), "labels": one["labels"][::3],
         "masks": one["masks"][::3]}
        for one in predictions
    ]  # fmt: skip


def coco_ap(predictions, ground_truth):
    """Compute AP of boxes and masks with pycocotools."""
    objects, rows = [], []
    for number, (one, true) in enumerate(zip(predictions, ground_truth, strict=True), 1):
        expected = coco_results(number, true["boxes"], torch.ones(len(true["boxes"])),
                                true["labels"].tolist(), true["masks"])  # fmt: skip
        objects += [{**row, "iscrowd": 0, "area": 1} for row in expected.to_coco()]
        rows += coco_results(number, one["boxes"], one["scores"], one["labels"].tolist(),
                             one["masks"]).to_coco()  # fmt: skip
    content = coco_content(objects, range(1, len(predictions) + 1), categories="123")
    for image, one in zip(content["images"], predictions, strict=True):
        image["height"], image["width"] = one["masks"].shape[1:]
    coco = make_coco(content)
    aps = {}
    for kind in ("bbox", "segm"):
        evaluation = COCOeval(coco, coco.loadRes(rows), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
        aps[kind] = evaluation.stats[0]
    return aps


@pytest.mark.parametrize("caller", ["predictor", "model"])
def test_results_work_with_torchmetrics(model, images, caller):
    detection = pytest.importorskip("torchmetrics.detection")
    if caller == "predictor":
        predictions = Predictor(model, 64)(images)
    else:  # masks are probabilities [N, 1, H, W], as in torchvision
        with torch.no_grad():
            predictions = [{**one, "masks": one["masks"][:, 0] > 0.5} for one in model(images)]
    ground_truth = ground_truth_for(predictions)
    metric = detection.MeanAveragePrecision(iou_type=("bbox", "segm"))
    metric.update(predictions, ground_truth)
    computed, expected = metric.compute(), coco_ap(predictions, ground_truth)
    assert 0.1 < expected["bbox"] < 0.99
    for kind, ap in expected.items():
        assert computed[f"{kind}_map"].item() == pytest.approx(ap, abs=1e-6)


@pytest.mark.slow
def test_the_model_has_the_interface_of_torchvision(model, images):
    """The same inputs lead to outputs with the same names, types and shapes."""
    from torchvision.models.detection import maskrcnn_resnet50_fpn

    theirs = maskrcnn_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=4, min_size=64, max_size=96,
        box_score_thresh=0.0, box_detections_per_img=20, box_batch_size_per_image=32,
        rpn_post_nms_top_n_train=50, rpn_post_nms_top_n_test=50,
    )  # fmt: skip
    images = [image.float() / 255 for image in images]
    with torch.no_grad():
        results = [own.eval()(images) for own in (model, theirs)]
    for ours, other, image in zip(*results, images, strict=True):
        assert ours.keys() == other.keys()
        for name, value in other.items():
            assert ours[name].dtype == value.dtype
            assert ours[name].shape[1:] == value.shape[1:]
        assert ours["masks"].shape[1:] == (1, *image.shape[1:])
    boxes, labels = torch.tensor([[4.0, 5, 40, 50], [20, 8, 60, 44]]), torch.tensor([1, 3])
    masks = [torch.ones(2, *image.shape[1:], dtype=torch.uint8) for image in images]
    targets = [{"boxes": boxes, "labels": labels, "masks": one} for one in masks]
    for own in (model, theirs):
        losses = own.train()(images, targets)
        assert all(loss.ndim == 0 and loss.isfinite() for loss in losses.values())
        assert {"loss_classifier", "loss_objectness", "loss_mask"} <= losses.keys()
