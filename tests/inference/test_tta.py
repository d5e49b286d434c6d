"""Test-time augmentation: detections of several views of an image."""

from dataclasses import replace

import pytest
import torch

from detlite.config import ConfigError
from detlite.data.transforms.resize import resize_shortest
from detlite.inference.options import InferenceOptions, View
from detlite.inference.predictor import Predictor
from detlite.inference.tta import AugmentedDetector
from detlite.modeling.build import build_model
from detlite.modeling.postprocessing import Postprocess
from detlite.structures import boxes as box_ops
from detlite.structures.instances import PredictedBoxes
from detlite.structures.padding import RowPacking
from tests.builders import write_weights
from tests.modeling.family import ALL_SCORES, RETINANET, family_config

NAMES = ["left_ear", "right_ear", "nose"]
SWAPPED = [1, 0, 2]
SIZE = (64, 96)  # height, width


@pytest.fixture
def model(tiny_config):
    """Model with random weights whose boxes, masks and keypoints vary."""
    model = build_model(family_config("keypoint", tiny_config, *ALL_SCORES)).eval()
    heads = model.roi_heads
    for layer in (heads.box.predictor.bbox_pred, heads.mask.predictor.mask_fcn_logits):
        torch.nn.init.normal_(layer.weight, std=0.3)
    return model


@pytest.fixture
def image():
    return torch.randint(0, 255, (3, *SIZE), dtype=torch.uint8)


def detect(model, image, *views):
    (detections,) = AugmentedDetector(model, views, keypoint_names=NAMES).detect([image])
    return detections


def assert_same(actual, expected):
    torch.testing.assert_close(actual.named_fields(), expected.named_fields())


def test_one_view_of_the_same_size_equals_plain_detection(model, image):
    detections, plain = detect(model, image, View(64, 1000)), model.detect([image])[0]
    assert len(detections.boxes) > 5
    assert {"mask_probs", "keypoints", "keypoint_scores"} < detections.named_fields().keys()
    assert_same(detections, plain)


FIELDS = {"boxes", "scores", "labels"}
RETINANET_OPTS = [
    *(item for pair in RETINANET.items() for item in pair), "MODEL.RETINANET.NUM_CONVS", 1,
    "MODEL.RETINANET.ANCHOR_SIZES", (8, 16, 32, 64, 128), "MODEL.RETINANET.INFERENCE_TH", 0.0,
    "MODEL.RETINANET.PRE_NMS_TOP_N", 200, "MODEL.ROI_HEADS.DETECTIONS_PER_IMG", 300,
]  # fmt: skip


@pytest.mark.parametrize("size", [64, 96, 50])
@pytest.mark.parametrize(
    ("convention", "rules"),
    [("detlite", {}), ("detectron2", {"clip": "before-nms"}), ("torchvision", {"min_size": 0.0})],
)
def test_one_view_keeps_the_convention_of_the_detector(tiny_config, image, convention, rules, size):
    """Boxes are clipped at the same point, and have the same minimum size, as without views."""
    torch.manual_seed(0)
    model = build_model(tiny_config(*RETINANET_OPTS, "MODEL.CONVENTION", convention)).eval()
    torch.nn.init.normal_(model.head.cls_logits.weight, std=1.0)
    center_and_sides = torch.tensor([20.0, 20.0, 1.0, 1.0])  # so that boxes exceed the image
    model.head.bbox_pred.bias.data.copy_(torch.randn(9, 4).mul(center_and_sides).flatten())
    model.categories = [{"id": k, "name": f"kind {k}"} for k in (1, 2, 3)]
    plain = Predictor(model, size, 1000)(image)
    assert len(plain["scores"]) > 50
    augmented = Predictor(model, options=InferenceOptions(views=[View(size, 1000)]))(image)
    assert augmented.keys() == plain.keys()
    for name, value in plain.items():
        other = augmented[name]
        assert torch.equal(value, other) if name in FIELDS else value == other, name
    if rules:  # the rule makes a difference for this image
        model.postprocess = replace(model.postprocess, **rules)
        other = Predictor(model, size, 1000)(image)
        assert not torch.equal(other["boxes"], plain["boxes"])


def test_detections_of_a_mirrored_view_are_mirrored_back(model, image):
    mirrored = detect(model, image.flip(-1), View(64, 1000, flip=True))
    plain = detect(model, image, View(64, 1000))
    width = SIZE[1]
    torch.testing.assert_close(mirrored.boxes, box_ops.flip(plain.boxes, width))
    torch.testing.assert_close(mirrored.mask_probs, plain.mask_probs.flip(-1))
    torch.testing.assert_close(mirrored.keypoint_scores, plain.keypoint_scores[:, SWAPPED])
    expected = plain.keypoints[:, SWAPPED]
    expected[..., 0] = width - expected[..., 0]
    # The peak of a heat map is rounded to a pixel from the left.
    torch.testing.assert_close(mirrored.keypoints, expected, atol=1.0, rtol=0)


def test_overlaps_are_measured_in_the_first_view(model, image, monkeypatch):
    """Overlaps depend on the scale if the last pixel belongs to a box."""
    candidates, suppress = [], Postprocess.suppress
    monkeypatch.setattr(
        Postprocess, "suppress", lambda *args: candidates.append(args[1]) or suppress(*args)
    )
    detections = detect(model, image, View(96, 1000), View(128, 1000))
    (joined,) = candidates
    images, _ = model.prepare([resize_shortest(image, 96, 1000)])
    with torch.no_grad():
        first = model.predict_boxes(model.backbone(images.pixels), images)
        first = model.postprocess.select(first, images.sizes)
    count = first.boxes.shape[1]
    assert 0 < count < joined.boxes.shape[1]
    torch.testing.assert_close(joined.boxes[:, :count], first.boxes)
    assert detections.boxes[:, 2].max() <= SIZE[1]


def test_views_are_suppressed_together_and_their_maps_averaged(model, image):
    views = [View(64, 1000), View(64, 1000, flip=True), View(96, 1000)]
    detections = detect(model, image, *views)
    boxes, scores, labels = [], [], []
    features_by_view = []
    for view in views:
        resized = resize_shortest(image, view.min_size, view.max_size)
        resized = resized.flip(-1) if view.flip else resized
        with torch.no_grad():
            images, _ = model.prepare([resized])
            features = model.backbone(images.pixels)
            own = model.predict_boxes(features, images)
            own = model.postprocess.select(own, images.sizes)[own.valid]
        scale = 64 / view.min_size
        width = resized.shape[-1]
        upright = box_ops.flip(own.boxes, width) if view.flip else own.boxes
        boxes.append(upright * scale)
        scores.append(own.scores)
        labels.append(own.labels)
        features_by_view.append((view, features, width, scale))
    boxes, scores, labels = (torch.cat(rows)[None] for rows in (boxes, scores, labels))
    joined = PredictedBoxes(boxes, scores, labels, torch.ones_like(labels, dtype=torch.bool))
    expected = model.postprocess.suppress(joined, static_shapes=False)
    for name in ("boxes", "scores", "labels"):
        torch.testing.assert_close(getattr(detections, name), getattr(expected, name)[0])
    probs = []
    for view, features, width, scale in features_by_view:
        regions = expected.boxes / scale
        regions = box_ops.flip(regions, width) if view.flip else regions
        with torch.no_grad():
            packing = RowPacking(expected.valid, static_shapes=False)
            maps = model.roi_heads.head_outputs(features, packing, regions, expected.labels)
        probs.append(maps["mask"].flip(-1) if view.flip else maps["mask"])
    torch.testing.assert_close(detections.mask_probs, torch.stack(probs).mean(0))


def test_proposals_of_all_views_are_suppressed_together(tiny_config, image):
    opts = ["MODEL.META_ARCHITECTURE", "ProposalNetwork", "MODEL.MASK_ON", False]
    network = build_model(tiny_config(*opts)).eval()
    once = detect(network, image, View(64, 96))
    assert len(once.boxes) == 50  # FPN_POST_NMS_TOP_N_TEST
    overlaps = box_ops.iou(*[detect(network, image, *[View(64, 96)] * 2).boxes] * 2)
    assert overlaps.fill_diagonal_(0).max() <= network.rpn.nms_thresh


def test_boxes_outside_the_image_are_dropped(model, image, monkeypatch):
    outside = PredictedBoxes(
        boxes=torch.tensor([[[-30.0, 5, -10, 25], [2, 2, 40, 40], [90, 50, 120, 90]]]),
        scores=torch.tensor([[0.9, 0.8, 0.7]]),
        labels=torch.tensor([[1, 1, 2]]),
        valid=torch.tensor([[True, True, True]]),
    )
    monkeypatch.setattr(model, "predict_boxes", lambda features, images, proposals: outside)
    detections = detect(model, image, View(64, 1000))
    assert detections.boxes.tolist() == [[2, 2, 40, 40], [90, 50, 96, 64]]


def test_mirrored_keypoints_need_names(model):
    with pytest.raises(ConfigError, match=r"TEST\.BBOX_AUG\.H_FLIP .* must be False: left and"):
        AugmentedDetector(model, [View(64, 1000, flip=True)])
    AugmentedDetector(model, [View(64, 1000)])


def test_a_checkpoint_with_views(tiny_config, image, tmp_path):
    cfg = tiny_config("INPUT.MIN_SIZE_TEST", 64, "MODEL.ROI_HEADS.SCORE_THRESH", 0.0)
    path = write_weights(cfg, tmp_path / "model.pth")
    keys = ["TEST.BBOX_AUG.ENABLED", True, "TEST.BBOX_AUG.H_FLIP", True]
    predictor = Predictor.from_checkpoint(path, keys, score_thresh=0.0)
    prediction = predictor(image)
    model = Predictor.from_checkpoint(path, ["TEST.OPTIMIZE", False]).model
    expected = detect(model, image, View(64, 1333), View(64, 1333, flip=True))
    torch.testing.assert_close(prediction["boxes"], expected.boxes)


def test_proposals_are_mapped_to_each_view(tiny_config, image):
    proposals = torch.tensor([[8.0, 6, 40, 30], [60.0, 20, 90, 60]])
    model = build_model(tiny_config("MODEL.LOAD_PROPOSALS", True)).eval()
    seen = []
    model.roi_heads.box.feature_extractor.register_forward_hook(
        lambda _, inputs, output: seen.append(inputs[1][:, 1:])
    )
    views = [View(64, 1000), View(128, 1000), View(64, 1000, flip=True)]
    AugmentedDetector(model, views).detect([image], [proposals])
    width = image.shape[-1]
    expected = proposals, 2 * proposals, box_ops.flip(proposals, width)
    for boxes, target in zip(seen, expected, strict=True):
        torch.testing.assert_close(boxes, target)
