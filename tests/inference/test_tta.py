from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from detlite.config import ConfigError, load_config
from detlite.conversion.checkpoint.files import Checkpoint, save_checkpoint
from detlite.data.transforms.resize import resize_shortest
from detlite.inference.predictor import Predictor
from detlite.inference.tta import AugmentedDetector, View, build_views
from detlite.modeling.build import build_model
from detlite.modeling.postprocessing import Postprocess
from detlite.structures import boxes as box_ops
from detlite.structures.instances import PredictedBoxes
from detlite.structures.padding import Rows, fixed_shapes, shapes_vary

NAMES = ["left_ear", "right_ear", "nose"]
SWAPPED = [1, 0, 2]
KEYPOINTS = [
    "MODEL.KEYPOINT_ON", True, "MODEL.ROI_KEYPOINT_HEAD.SHARE_BOX_FEATURE_EXTRACTOR", False,
    "MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES", 3, "MODEL.ROI_KEYPOINT_HEAD.RESOLUTION", 56,
    "MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS", (8,), "MODEL.ROI_HEADS.SCORE_THRESH", 0.0,
]  # fmt: skip
PICTURE = (64, 96)  # height, width


@pytest.fixture
def model(tiny_config):
    """Boxes, masks and keypoints that differ from place to place, from random weights."""
    model = build_model(tiny_config(*KEYPOINTS)).eval()
    heads = model.roi_heads
    for layer in (heads.box.predictor.bbox_pred, heads.mask.predictor.mask_fcn_logits):
        torch.nn.init.normal_(layer.weight, std=0.3)
    return model


@pytest.fixture
def picture():
    return torch.randint(0, 255, (3, *PICTURE), dtype=torch.uint8)


def detect(model, picture, *views):
    (found,) = AugmentedDetector(model, views, keypoint_names=NAMES).detect([picture])
    return found


def named(found):
    """The fields of detections that are there."""
    values = {field.name: getattr(found, field.name) for field in fields(found)}
    return {name: value for name, value in values.items() if value is not None}


def assert_same(found, wanted, **tolerances):
    assert named(found).keys() == named(wanted).keys()
    for name, value in named(wanted).items():
        torch.testing.assert_close(getattr(found, name), value, **tolerances)


def test_one_view_of_the_same_size_is_plain_detection(model, picture):
    found, plain = detect(model, picture, View(64, 1000)), model.detect([picture])[0]
    assert len(found.boxes) > 5
    assert {"mask_probs", "keypoints", "keypoint_scores"} < named(found).keys()
    assert_same(found, plain)


RETINANET = [
    "MODEL.META_ARCHITECTURE", "RetinaNet", "MODEL.BACKBONE.CONV_BODY", "R-18-FPN-RETINANET",
    "MODEL.MASK_ON", False, "MODEL.RETINANET.NUM_CLASSES", 4, "MODEL.RETINANET.NUM_CONVS", 1,
    "MODEL.RETINANET.ANCHOR_SIZES", (8, 16, 32, 64, 128), "MODEL.RETINANET.INFERENCE_TH", 0.0,
    "MODEL.RETINANET.PRE_NMS_TOP_N", 200, "MODEL.ROI_HEADS.DETECTIONS_PER_IMG", 300,
]  # fmt: skip


@pytest.fixture
def retinanet(tiny_config):
    """`retinanet(convention)`: a RetinaNet whose boxes often reach beyond the picture."""

    def build(convention):
        torch.manual_seed(0)
        model = build_model(tiny_config(*RETINANET, "MODEL.CONVENTION", convention)).eval()
        torch.nn.init.normal_(model.head.cls_logits.weight, std=1.0)
        centre_and_sides = torch.tensor([20.0, 20.0, 1.0, 1.0])  # BBOX_REG_WEIGHTS divides
        model.head.bbox_pred.bias.data.copy_(torch.randn(9, 4).mul(centre_and_sides).flatten())
        return model

    return build


@pytest.mark.parametrize("size", [64, 96, 50])
@pytest.mark.parametrize(
    ("convention", "rules"),
    [
        ("detlite", {}),
        ("detectron2", {"clip": "before-nms"}),
        ("torchvision", {"min_size": 0.0}),
    ],
)
def test_one_view_keeps_the_convention_of_the_detector(retinanet, picture, convention, rules, size):
    """When boxes are clipped, and how small they may be, is the same in one view and in none."""
    model = retinanet(convention)
    model.categories = [{"id": k, "name": f"kind {k}"} for k in (1, 2, 3)]
    plain = Predictor(model, size, 1000)(picture)
    assert len(plain["scores"]) > 50
    found = Predictor(model, views=[View(size, 1000)])(picture)
    assert found.keys() == plain.keys()
    for name, value in plain.items():
        assert torch.equal(value, found[name]) if name in FIELDS else value == found[name], name
    if rules:  # the picture shows the difference
        model.postprocess = replace(model.postprocess, **rules)
        other = Predictor(model, size, 1000)(picture)
        assert not torch.equal(other["boxes"], plain["boxes"])


FIELDS = {"boxes", "scores", "labels"}


def test_a_mirrored_view_is_brought_back(model, picture):
    found = detect(model, picture.flip(-1), View(64, 1000, flip=True))
    plain = detect(model, picture, View(64, 1000))
    width = PICTURE[1]
    torch.testing.assert_close(found.boxes, box_ops.flip(plain.boxes, width))
    torch.testing.assert_close(found.mask_probs, plain.mask_probs.flip(-1))
    torch.testing.assert_close(found.keypoint_scores, plain.keypoint_scores[:, SWAPPED])
    mirrored = plain.keypoints[:, SWAPPED]
    mirrored[..., 0] = width - mirrored[..., 0]
    # The highest place is found up to a pixel, counted from the left.
    torch.testing.assert_close(found.keypoints, mirrored, atol=1.0, rtol=0)


@pytest.fixture
def suppressed(monkeypatch):
    """What was suppressed together: pairs of candidates and the number of views."""
    calls = []
    suppress = Postprocess.suppress

    def spy(self, candidates, views=1):
        calls.append((candidates, views))
        return suppress(self, candidates, views)

    monkeypatch.setattr(Postprocess, "suppress", spy)
    return calls


def test_overlaps_are_measured_in_the_first_view(model, picture, suppressed):
    """Where the last pixel counts, they depend on the scale."""
    found = detect(model, picture, View(96, 1000), View(128, 1000))
    ((joined, _),) = suppressed
    images, _ = model.prepare([resize_shortest(picture, 96, 1000)])
    with torch.no_grad():
        first = model.predict_boxes(model.backbone(images.pixels), images)
        first = model.postprocess.usable(first, images.sizes)
    count = first.boxes.shape[1]
    assert 0 < count < joined.boxes.shape[1]
    torch.testing.assert_close(joined.boxes[:, :count], first.boxes)
    assert found.boxes[:, 2].max() <= PICTURE[1]


def test_a_larger_view_is_brought_back(model, picture):
    large = torch.nn.functional.interpolate(picture[None].float(), scale_factor=2, mode="nearest")
    (other,) = model.detect([large[0].byte()])
    # A nearest-neighbour enlargement, halved without antialiasing, is the picture again.
    found = detect(model, large[0].byte(), View(128, 1000))
    torch.testing.assert_close(found.boxes, other.boxes)
    assert found.boxes.max() > PICTURE[1]
    small = detect(model, large[0].byte(), View(64, 1000))
    assert small.boxes.max() > PICTURE[1]
    assert (small.boxes <= torch.tensor([192.0, 128, 192, 128])).all()


def test_the_picture_may_be_on_another_device(model, picture, device):
    views = [View(64, 1000), View(80, 1000, flip=True)]
    wanted = detect(model, picture, *views)
    found = detect(model.to(device), picture, *views)
    assert {value.device.type for value in named(found).values()} == {device}
    assert abs(len(found.boxes) - len(wanted.boxes)) <= 2  # two boxes may score the same
    assert found.keypoints.shape == (len(found.boxes), 3, 3)


def test_padding_changes_nothing(model, picture):
    views = [View(64, 1000), View(80, 1000, flip=True)]
    wanted = detect(model, picture, *views)
    with fixed_shapes():
        assert_same(detect(model, picture, *views), wanted)


def test_padding_is_left_out_on_every_device(model, picture):
    """The results are read at once anyway, so that waiting for values costs nothing."""
    on_device, vary = torch.empty(0, device="meta"), []
    model.backbone.register_forward_hook(lambda *_: vary.append(shapes_vary(on_device)))
    detect(model, picture, View(64, 1000), View(80, 1000, flip=True))
    with fixed_shapes():
        detect(model, picture, View(64, 1000))
    assert vary == [True, True, False]


def test_views_are_suppressed_together_and_their_maps_averaged(model, picture):
    views = [View(64, 1000), View(64, 1000, flip=True), View(96, 1000)]
    found = detect(model, picture, *views)
    boxes, scores, labels = [], [], []
    seen = []
    for view in views:
        image = resize_shortest(picture, view.min_size, view.max_size)
        image = image.flip(-1) if view.flip else image
        with torch.no_grad():
            images, _ = model.prepare([image])
            features = model.backbone(images.pixels)
            own = model.predict_boxes(features, images)
            own = model.postprocess.usable(own, images.sizes)[own.valid]
        scale = 64 / view.min_size
        width = image.shape[-1]
        moved = box_ops.flip(own.boxes, width) if view.flip else own.boxes
        boxes.append(moved * scale)
        scores.append(own.scores)
        labels.append(own.labels)
        seen.append((view, features, width, scale))
    boxes, scores, labels = (torch.cat(rows)[None] for rows in (boxes, scores, labels))
    joined = PredictedBoxes(boxes, scores, labels, torch.ones_like(labels, dtype=torch.bool))
    wanted = model.postprocess.suppress(joined)
    for name in ("boxes", "scores", "labels"):
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name)[0])
    probs = []
    for view, features, width, scale in seen:
        regions = wanted.boxes / scale
        regions = box_ops.flip(regions, width) if view.flip else regions
        with torch.no_grad():
            maps = model.roi_heads.maps(features, Rows(wanted.valid), regions, wanted.labels)
        probs.append(maps["mask_probs"].flip(-1) if view.flip else maps["mask_probs"])
    torch.testing.assert_close(found.mask_probs, torch.stack(probs).mean(0))


def test_proposals_of_all_views_are_suppressed_together(tiny_config, picture):
    opts = ["MODEL.META_ARCHITECTURE", "ProposalNetwork", "MODEL.MASK_ON", False]
    network = build_model(tiny_config(*opts)).eval()
    once = detect(network, picture, View(64, 96))
    assert len(once.boxes) == 50  # FPN_POST_NMS_TOP_N_TEST
    overlaps = box_ops.iou(*[detect(network, picture, *[View(64, 96)] * 2).boxes] * 2)
    assert overlaps.fill_diagonal_(0).max() <= network.rpn.nms_thresh


def test_fusion_knows_the_number_of_views(model, picture, suppressed):
    detect(model, picture, View(64, 1000), View(64, 1000, flip=True))
    assert [views for _, views in suppressed] == [2]


def test_without_further_heads_boxes_alone(tiny_config, picture):
    model = build_model(tiny_config("MODEL.MASK_ON", False)).eval()
    found = detect(model, picture, View(64, 1000), View(80, 1000, flip=True))
    assert named(found).keys() == {"boxes", "scores", "labels", "valid"}


def test_boxes_outside_the_picture_are_dropped(model, picture, monkeypatch):
    outside = PredictedBoxes(
        boxes=torch.tensor([[[-30.0, 5, -10, 25], [2, 2, 40, 40], [90, 50, 120, 90]]]),
        scores=torch.tensor([[0.9, 0.8, 0.7]]),
        labels=torch.tensor([[1, 1, 2]]),
        valid=torch.tensor([[True, True, True]]),
    )
    monkeypatch.setattr(model, "predict_boxes", lambda features, images, given: outside)
    found = detect(model, picture, View(64, 1000))
    assert found.boxes.tolist() == [[2, 2, 40, 40], [90, 50, 96, 64]]


def test_views_by_config():
    keys = ["INPUT.MIN_SIZE_TEST", 300, "INPUT.MAX_SIZE_TEST", 500, "TEST.BBOX_AUG.MAX_SIZE", 900,
            "TEST.BBOX_AUG.H_FLIP", True, "TEST.BBOX_AUG.SCALES", (200, 400)]  # fmt: skip
    assert build_views(load_config(None, keys)) == []
    keys += ["TEST.BBOX_AUG.ENABLED", True]
    views = [View(300, 500), View(300, 500, True), View(200, 900), View(400, 900)]
    assert build_views(load_config(None, keys)) == views
    keys += ["TEST.BBOX_AUG.SCALE_H_FLIP", True, "TEST.BBOX_AUG.H_FLIP", False]
    assert build_views(load_config(None, keys)) == [
        View(300, 500), View(200, 900), View(200, 900, True), View(400, 900), View(400, 900, True),
    ]  # fmt: skip


def test_mirrored_keypoints_need_names(model):
    with pytest.raises(ConfigError, match=r"TEST\.BBOX_AUG\.H_FLIP .* must be False: left and"):
        AugmentedDetector(model, [View(64, 1000, flip=True)])
    AugmentedDetector(model, [View(64, 1000)])


def test_predictor_joins_views(model, picture):
    model.categories = [{"id": k, "name": f"kind {k}", "keypoints": NAMES} for k in (1, 2, 3)]
    views = [View(64, 1000), View(64, 1000, flip=True)]
    predictor = Predictor(model, views=views)
    found, wanted = predictor(picture), detect(model, picture, *views)
    for name in ("boxes", "scores", "labels", "keypoints"):
        torch.testing.assert_close(found[name], getattr(wanted, name))
    assert found["masks"].shape == (len(found["boxes"]), *PICTURE)


def test_nothing_found(model, picture):
    model.roi_heads.box.score_thresh = 1.0
    found = detect(model, picture, View(64, 1000), View(64, 1000, flip=True))
    assert found.boxes.shape == (0, 4)
    assert found.mask_probs.shape == (0, 28, 28)
    assert found.keypoints.shape == (0, 3, 3)


def test_checkpoint_in_several_views(tiny_config, picture, tmp_path):
    cfg = tiny_config("INPUT.MIN_SIZE_TEST", 64, "MODEL.ROI_HEADS.SCORE_THRESH", 0.0)
    model = build_model(cfg)
    categories = [{"id": k, "name": f"kind {k}"} for k in (1, 2, 3)]
    path = tmp_path / "model.pth"
    save_checkpoint(Checkpoint(path, model.state_dict(), categories, cfg.dump()))
    keys = ["TEST.BBOX_AUG.ENABLED", True, "TEST.BBOX_AUG.H_FLIP", True]
    predictor = Predictor.from_checkpoint(path, keys)
    found = predictor(picture)
    wanted = detect(model.eval(), picture, View(64, 1333), View(64, 1333, flip=True))
    torch.testing.assert_close(found["boxes"], wanted.boxes)


def test_given_regions_move_with_the_picture(tiny_config, picture):
    given = torch.tensor([[8.0, 6, 40, 30], [60.0, 20, 90, 60]])
    model = build_model(tiny_config("MODEL.LOAD_PROPOSALS", True)).eval()
    seen = []
    model.roi_heads.box.feature_extractor.register_forward_hook(
        lambda _, inputs, output: seen.append(inputs[1][:, 1:])
    )
    views = [View(64, 1000), View(128, 1000), View(64, 1000, flip=True)]
    AugmentedDetector(model, views).detect([picture], [given])
    width = picture.shape[-1]
    for boxes, wanted in zip(seen, (given, 2 * given, box_ops.flip(given, width)), strict=True):
        torch.testing.assert_close(boxes, wanted)
