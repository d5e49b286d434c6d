from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from detlite.config import ConfigError, load_config
from detlite.data.resize import resize_shortest
from detlite.engine import test_time_augmentation
from detlite.engine.checkpoint import save_checkpoint
from detlite.engine.test_time_augmentation import AugmentedDetector, View, build_views
from detlite.modeling.rcnn import build_model
from detlite.modeling.suppression import suppress
from detlite.predictor import Predictor
from detlite.structures import boxes as box_ops

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


def test_one_view_of_the_same_size_is_plain_detection(model, picture):
    found, plain = detect(model, picture, View(64, 1000)), model.detect([picture])[0]
    assert found.keys() == plain.keys()
    assert len(found["boxes"]) > 5
    for name, value in plain.items():
        torch.testing.assert_close(found[name], value)


def test_a_mirrored_view_is_brought_back(model, picture):
    found = detect(model, picture.flip(-1), View(64, 1000, flip=True))
    plain = detect(model, picture, View(64, 1000))
    width = PICTURE[1]
    torch.testing.assert_close(found["boxes"], box_ops.mirror(plain["boxes"], width))
    torch.testing.assert_close(found["mask_probs"], plain["mask_probs"].flip(-1))
    torch.testing.assert_close(found["keypoints_scores"], plain["keypoints_scores"][:, SWAPPED])
    mirrored = plain["keypoints"][:, SWAPPED]
    mirrored[..., 0] = width - mirrored[..., 0]
    # The highest place is found up to a pixel, counted from the left.
    torch.testing.assert_close(found["keypoints"], mirrored, atol=1.0, rtol=0)


def test_overlaps_are_measured_in_the_first_view(model, picture, monkeypatch):
    """Where the last pixel counts, they depend on the scale."""
    joined = []

    def recorded(candidates, *options):
        joined.append(candidates["boxes"])
        return suppress(candidates, *options)

    monkeypatch.setattr(test_time_augmentation, "suppress", recorded)
    views = View(96, 1000), View(128, 1000)
    found = detect(model, picture, *views)
    image = resize_shortest(picture, 96, 1000)
    batch = model.normalizer([image])
    (first,) = model.candidates(model.backbone(batch.tensor), batch)
    count = len(first["boxes"])
    assert 0 < count < len(joined[0])
    torch.testing.assert_close(joined[0][:count], first["boxes"])
    assert found["boxes"][:, 2].max() <= PICTURE[1]


def test_a_larger_view_is_brought_back(model, picture):
    large = torch.nn.functional.interpolate(picture[None].float(), scale_factor=2, mode="nearest")
    (other,) = model.detect([large[0].byte()])
    # A nearest-neighbour enlargement, halved without antialiasing, is the picture again.
    found = detect(model, large[0].byte(), View(128, 1000))
    torch.testing.assert_close(found["boxes"], other["boxes"])
    assert found["boxes"].max() > PICTURE[1]
    small = detect(model, large[0].byte(), View(64, 1000))
    assert small["boxes"].max() > PICTURE[1]
    assert (small["boxes"] <= torch.tensor([192.0, 128, 192, 128])).all()


def test_the_picture_may_be_on_another_device(model, picture, device):
    views = [View(64, 1000), View(80, 1000, flip=True)]
    wanted = detect(model, picture, *views)
    found = detect(model.to(device), picture, *views)
    assert {value.device.type for value in found.values()} == {device}
    assert abs(len(found["boxes"]) - len(wanted["boxes"])) <= 2  # two boxes may score the same
    assert found["keypoints"].shape == (len(found["boxes"]), 3, 3)


def test_views_are_suppressed_together_and_their_maps_averaged(model, picture):
    views = [View(64, 1000), View(64, 1000, flip=True), View(96, 1000)]
    found = detect(model, picture, *views)
    boxes, scores, labels = [], [], []
    seen = []
    for view in views:
        image = resize_shortest(picture, view.min_size, view.max_size)
        image = image.flip(-1) if view.flip else image
        with torch.no_grad():
            batch = model.normalizer([image])
            features = model.backbone(batch.tensor)
            (own,) = model.candidates(features, batch)
        scale = 64 / view.min_size
        width = image.shape[-1]
        moved = box_ops.mirror(own["boxes"], width) if view.flip else own["boxes"]
        boxes.append(moved * scale)
        scores.append(own["scores"])
        labels.append(own["labels"])
        seen.append((view, features, width, scale))
    wanted = suppress(
        {"boxes": torch.cat(boxes), "scores": torch.cat(scores), "labels": torch.cat(labels)},
        model.limits,
    )
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value)
    probs = []
    for view, features, width, scale in seen:
        regions = wanted["boxes"] / scale
        regions = box_ops.mirror(regions, width) if view.flip else regions
        with torch.no_grad():
            (maps,) = model.region_maps(features, [regions], [wanted["labels"]])
        probs.append(maps["mask_probs"].flip(-1) if view.flip else maps["mask_probs"])
    torch.testing.assert_close(found["mask_probs"], torch.stack(probs).mean(0))


def test_fusion_knows_the_number_of_views(model, picture, monkeypatch):
    counts = []

    def spy(candidates, limits, views=1):
        counts.append(views)
        return suppress(candidates, limits, views)

    monkeypatch.setattr("detlite.engine.test_time_augmentation.suppress", spy)
    detect(model, picture, View(64, 1000), View(64, 1000, flip=True))
    assert counts == [2]


def test_without_further_heads_boxes_alone(tiny_config, picture):
    model = build_model(tiny_config("MODEL.MASK_ON", False)).eval()
    found = detect(model, picture, View(64, 1000), View(80, 1000, flip=True))
    assert found.keys() == {"boxes", "scores", "labels"}


def test_boxes_outside_the_picture_are_dropped(model, picture, monkeypatch):
    outside = {
        "boxes": torch.tensor([[-30.0, 5, -10, 25], [2, 2, 40, 40], [90, 50, 120, 90]]),
        "scores": torch.tensor([0.9, 0.8, 0.7]),
        "labels": torch.tensor([1, 1, 2]),
    }
    monkeypatch.setattr(model, "candidates", lambda features, sizes: [outside])
    found = detect(model, picture, View(64, 1000))
    assert found["boxes"].tolist() == [[2, 2, 40, 40], [90, 50, 96, 64]]


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
        torch.testing.assert_close(found[name], wanted[name])
    assert found["masks"].shape == (len(found["boxes"]), *PICTURE)


def test_nothing_found(model, picture):
    model.limits = replace(model.limits, score_thresh=1.0)
    found = detect(model, picture, View(64, 1000), View(64, 1000, flip=True))
    assert found["boxes"].shape == (0, 4)
    assert found["mask_probs"].shape == (0, 28, 28)
    assert found["keypoints"].shape == (0, 3, 3)


def test_checkpoint_in_several_views(tiny_config, picture, tmp_path):
    cfg = tiny_config("INPUT.MIN_SIZE_TEST", 64, "MODEL.ROI_HEADS.SCORE_THRESH", 0.0)
    model = build_model(cfg)
    categories = [{"id": k, "name": f"kind {k}"} for k in (1, 2, 3)]
    content = {"model": model.state_dict(), "categories": categories, "config": cfg.dump()}
    save_checkpoint(tmp_path / "model.pth", content)
    keys = ["TEST.BBOX_AUG.ENABLED", True, "TEST.BBOX_AUG.H_FLIP", True]
    predictor = Predictor.from_checkpoint(tmp_path / "model.pth", keys)
    found = predictor(picture)
    wanted = detect(model.eval(), picture, View(64, 1333), View(64, 1333, flip=True))
    torch.testing.assert_close(found["boxes"], wanted["boxes"])


def test_given_regions_move_with_the_picture(tiny_config, picture):
    given = torch.tensor([[8.0, 6, 40, 30], [60.0, 20, 90, 60]])
    model = build_model(tiny_config("MODEL.LOAD_PROPOSALS", True)).eval()
    seen = []
    model.roi_heads.box.feature_extractor.register_forward_hook(
        lambda _, inputs, output: seen.append(inputs[1][0])
    )
    views = [View(64, 1000), View(128, 1000), View(64, 1000, flip=True)]
    AugmentedDetector(model, views).detect([picture], [given])
    width = picture.shape[-1]
    for boxes, wanted in zip(seen, (given, 2 * given, box_ops.mirror(given, width)), strict=True):
        torch.testing.assert_close(boxes, wanted)
