"""Conversion to other tools, and compatibility with other libraries."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from detlite.apps.prediction_writers import to_pandas, to_supervision
from detlite.config import ConfigError
from detlite.inference.predictor import Prediction, Predictor
from detlite.modeling.build import build_model
from detlite.structures.masks.formats import encode_bitmap

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


@pytest.mark.parametrize("caller", ["predictor", "model"])
def test_results_work_with_torchmetrics(tiny_config, caller):
    """With every second detection as the ground truth, the AP is that of random order."""
    detection = pytest.importorskip("torchmetrics.detection")
    model = build_model(tiny_config("MODEL.ROI_HEADS.SCORE_THRESH", 0.0)).eval()
    model.categories = [{"id": 10 * k, "name": f"kind {k}"} for k in (1, 2, 3)]
    torch.nn.init.normal_(model.roi_heads.mask.predictor.mask_fcn_logits.weight, std=0.5)
    images = [torch.randint(0, 255, (3, *size), dtype=torch.uint8) for size in ((64, 96), (80, 64))]
    if caller == "predictor":
        predictions = Predictor(model, 64)(images)
    else:  # masks are probabilities [N, 1, H, W], as in torchvision
        with torch.no_grad():
            predictions = [{**one, "masks": one["masks"][:, 0] > 0.5} for one in model(images)]
    names = ("boxes", "labels", "masks")
    truth = [{name: one[name][::2] for name in names} for one in predictions]
    metric = detection.MeanAveragePrecision(iou_type=("bbox", "segm"))
    for targets, low, high in ((truth, 0.1, 0.95), (predictions, 0.95, 1)):
        metric.update(predictions, targets)
        computed = metric.compute()
        assert low < computed["bbox_map"] <= high
        assert low < computed["segm_map"] <= high
        metric.reset()
