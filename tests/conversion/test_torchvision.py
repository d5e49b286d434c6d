"""Converted models equal torchvision's detectors with the same weights."""

import hashlib
from functools import partial

import pytest
import torch
import yaml
from torchvision.models import detection, mobilenet_v3_large
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.ops import FrozenBatchNorm2d

import detlite
from detlite.checkpoint.files import read_checkpoint
from detlite.checkpoint.stored_config import config_of
from detlite.config import ConfigError
from tests.conversion.recorded_outputs import load_recipe
from tests.conversion.torchvision_models import (
    TORCHVISION,
    compare_step,
    compare_torchvision,
    predictor_of,
    torchvision_model,
    training_batch,
)

SHORT_SIDE = 96
SIZES = {"E": (96, 128), "F": (128, 96)}  # need no resize in training
FAST = "maskrcnn_resnet50_fpn"


@pytest.fixture(scope="module")
def recipe(data_root):
    return load_recipe(data_root / "golden")


@pytest.fixture(
    scope="module",
    params=[
        FAST,
        *(pytest.param(name, marks=pytest.mark.slow) for name in TORCHVISION if name != FAST),
    ],
)
def models(request, recipe):
    """Both models, with few RoIs, whose heads take most of the time."""
    few, opts = {}, []
    if "rcnn" in request.param:
        few = {"box_batch_size_per_image": 8, "box_detections_per_img": 30}
        opts = ["MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", 8]
        opts += ["MODEL.ROI_HEADS.DETECTIONS_PER_IMG", 30]
    if "320" in request.param:
        opts += ["MODEL.RPN.PRE_NMS_TOP_N_TEST", 150, "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST", 150]
    reference = torchvision_model(request.param, recipe, min_size=SHORT_SIDE, **few)
    return request.param, reference, predictor_of(reference, opts)


@pytest.mark.slow
def test_detections_end_to_end(models, recipe):
    name, reference, predictor = models
    reference.transform.min_size = (115,)  # a fractional scale factor
    predictor.min_size = 115
    difference = compare_torchvision(reference, predictor, recipe.load_picture("D")[0])
    reference.transform.min_size = (SHORT_SIDE,)
    difference.check(
        21, box=1e-3 if "mobilenet" in name else 0.02, score=3e-4, mask=1e-3, keypoint=0.02,
        keypoint_score=1e-3, ties=2,
    )  # fmt: skip


@pytest.mark.slow
def test_losses_and_gradients_of_a_step(models, recipe):
    name, reference, predictor = models
    if name.startswith("fasterrcnn_resnet"):
        pytest.skip("a part of Mask R-CNN")
    batch = training_batch(recipe, SIZES, classes=2 if "keypoint" in name else 91)
    exact = compare_step(reference, predictor, *batch, torch.float64)
    assert exact.parameters > 70
    assert exact.losses < 1e-6
    assert exact.gradients < 1e-6
    if name == "maskrcnn_resnet50_fpn":  # the others differ by rounding in the same way
        step = compare_step(reference, predictor, *batch, torch.float32)
        assert step.losses < 1e-5
        assert step.gradients < 1e-3


@pytest.fixture(scope="module")
def small_rcnn():
    """Return a function that builds a Faster R-CNN with narrow heads and norms of small variance.

    Frozen norms have an epsilon of 1e-5, as all of torchvision's models without COCO_V1 weights.
    """

    def build(backbone="resnet18", classes=3, trained=False, **options):
        torch.manual_seed(0)
        norm = partial(torch.nn.BatchNorm2d if trained else FrozenBatchNorm2d, **options)
        body = resnet_fpn_backbone(
            backbone_name=backbone, weights=None, norm_layer=norm, trainable_layers=5
        )
        model = detection.FasterRCNN(
            body, box_head=TwoMLPHead(256 * 49, 16), box_predictor=FastRCNNPredictor(16, classes),
            min_size=96, box_score_thresh=0.0,
        ).eval()  # fmt: skip
        for module in model.modules():
            if hasattr(module, "running_var"):
                module.running_var.copy_(10 ** (-6 * torch.rand_like(module.running_var)))
                module.weight.data.copy_((module.running_var + 1e-5).sqrt())
        return model

    return build


SMALL = ["INPUT.MIN_SIZE_TEST", 96, "MODEL.ROI_HEADS.SCORE_THRESH", 0.0]


@pytest.mark.slow
@pytest.mark.parametrize(("classes", "trained", "eps"), [(91, False, None), (3, True, 1e-3)])
def test_epsilon_of_models_without_coco_weights(small_rcnn, recipe, caplog, classes, trained, eps):
    """Classifiers that come from TensorFlow have trained norms with an epsilon of 1e-3."""
    reference = small_rcnn("resnet18", classes, trained, **({"eps": eps} if eps else {}))
    opts = [*SMALL, "MODEL.RESNETS.BN_EPSILON", eps] if eps else SMALL
    predictor = predictor_of(reference, opts)
    difference = compare_torchvision(reference, predictor, recipe.load_picture("D")[0])
    difference.check(50, box=0.02, score=3e-4, ties=2)
    if eps:
        predictor_of(reference, SMALL)
        assert "MODEL.RESNETS.BN_EPSILON 1e-05" in caplog.text


@pytest.mark.slow
def test_unknown_epsilon_is_asked_for(small_rcnn, tmp_path, monkeypatch):
    """A ResNet-50 with own classes may have started from COCO_V1 weights, or not."""
    path = tmp_path / "w.pth"
    torch.save(small_rcnn("resnet50").state_dict(), path)
    with pytest.raises(ConfigError, match=r"w\.pth: the epsilon .* unknown.*frozen_norm_eps=0\.0"):
        detlite.load_checkpoint(path)
    opts = ["MODEL.DEVICE", "cpu", "MODEL.CONVENTION_OVERRIDE", ["frozen_norm_eps=0.00001"]]
    assert detlite.load_checkpoint(path, opts).model.convention.frozen_norm_eps == 1e-5
    # The same file would be known as published weights by its hash.
    digits = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    weights = detection.FasterRCNN_ResNet50_FPN_Weights.COCO_V1
    monkeypatch.setattr(weights.value, "url", f"https://host/faster-{digits}.pth")
    assert read_checkpoint(path).override == ["frozen_norm_eps=0.0"]


@pytest.mark.slow
def test_epsilon_of_coco_models(small_rcnn, tmp_path, caplog):
    """A ResNet-50 with all categories of COCO is taken to be published, with a warning."""
    torch.save(small_rcnn("resnet50", 91).state_dict(), tmp_path / "w.pth")
    cfg = config_of(read_checkpoint(tmp_path / "w.pth"))
    assert cfg.MODEL.CONVENTION_OVERRIDE == ("frozen_norm_eps=0.0",)
    assert "MODEL.CONVENTION_OVERRIDE ['frozen_norm_eps=0.0']" in caplog.text


def test_settings_of_the_low_resolution_mobilenet(tmp_path):
    name = "fasterrcnn_mobilenet_v3_large_320_fpn"
    model = getattr(detection, name)(weights=None, weights_backbone=None, num_classes=3)
    url = detection.FasterRCNN_MobileNet_V3_Large_320_FPN_Weights.COCO_V1.url
    path = tmp_path / url.rpartition("/")[2]
    torch.save(model.state_dict(), path)
    config = yaml.safe_load(read_checkpoint(path).config)
    assert (config["INPUT.MIN_SIZE_TEST"], config["INPUT.MAX_SIZE_TEST"]) == (320, 640)
    assert config["MODEL.RPN.PRE_NMS_TOP_N_TEST"] == 150
    assert config["MODEL.RPN.SCORE_THRESH"] == 0.05


def test_mobilenet_classifier_is_a_backbone(tmp_path):
    classifier = mobilenet_v3_large(weights=None)
    torch.save(classifier.state_dict(), tmp_path / "w.pth")
    checkpoint = read_checkpoint(tmp_path / "w.pth")
    assert checkpoint.backbone_only
    body = classifier.features.state_dict()
    assert checkpoint.model.keys() == {f"backbone.body.{name}" for name in body}
