import math
from itertools import chain, product

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from detlite.config import ConfigError
from detlite.conventions import CONVENTIONS
from detlite.modeling.build import build_model
from detlite.modeling.roi_heads.dense_heads import (
    MASK_LOSSES,
    KeypointHead,
    MaskHead,
    boundary_loss,
    dice_loss,
)
from detlite.ops import crop_masks
from detlite.structures.instances import GroundTruth, Samples
from detlite.structures.keypoints import to_heatmap_cells
from detlite.structures.masks.packed import PackedMasks
from detlite.structures.padding import Packing

SIDE = 6
MASK_HEAD = MaskHead(nn.Identity(), nn.Identity(), CONVENTIONS["detlite"])

each_mode = pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])


def two_images(*masks: torch.Tensor) -> GroundTruth:
    """Return ground truth with two objects in the first image and one in the second."""
    boxes = torch.tensor([[[0.0, 0, 12, 12], [1, 2, 9, 11]], [[3, 3, 9, 9], [0, 0, 0, 0]]])
    packed = [PackedMasks.from_bitmaps(own) for own in masks]
    return GroundTruth(boxes, torch.tensor([[2, 1], [2, 0]]), PackedMasks.collate(packed, 2))


SAMPLES = Samples(
    torch.tensor([[[0.0, 0, 12, 12], [1, 2, 9, 11], [0, 0, 5, 5], [0, 0, 0, 0]],
                  [[3, 3, 9, 9], [0, 0, 7, 7], [0, 0, 0, 0], [0, 0, 0, 0]]]),
    torch.tensor([[1, 2, 0, -1], [2, 0, -1, -1]]),
    torch.tensor([[1, 0, 0, 0], [0, 0, 0, 0]]),
)  # fmt: skip


@each_mode
def test_loss_matches_a_loop_over_pixels(static):
    masks = (torch.rand(3, 12, 12) > 0.4).to(torch.uint8)
    truth = two_images(masks[:2], masks[2:])
    packing = Packing(SAMPLES.labels > 0, static)
    logits = torch.randn(len(packing.index), 3, SIDE, SIDE)
    loss = MASK_HEAD.losses(logits, packing, SAMPLES, truth)["loss_mask"]
    total, entries = 0.0, [(0, 1, 1), (1, 0, 2), (4, 2, 2)]  # entry, instance, label
    for entry, instance, label in entries:
        box = SAMPLES.boxes.flatten(0, 1)[entry]
        own = PackedMasks.from_bitmaps(masks[instance][None])
        fields = own.values, own.pieces, own.instances, own.frames
        expected = crop_masks(*fields, torch.tensor([0]), box[None], SIDE, False)[0]
        assert 0 < expected.sum() < SIDE**2
        own_logits = logits[packing.index.tolist().index(entry), label]
        for row in range(SIDE):
            for column in range(SIDE):
                p = own_logits[row, column].sigmoid()
                total -= (p if expected[row, column] else 1 - p).log().item()
    assert loss.item() == pytest.approx(total / (3 * SIDE * SIDE), rel=1e-5)


def slow_dice_loss(probs: list[list[float]], target: list[list[float]]) -> float:
    p, t = list(chain(*probs)), list(chain(*target))
    overlap = sum(a * b for a, b in zip(p, t, strict=True))
    return 1 - 2 * overlap / sum(a * a for a in p + t)


def slow_boundary_loss(probs: list[list[float]], target: list[list[float]]) -> float:
    losses = []
    for row, column in product(range(SIDE), repeat=2):
        rows, columns = (range(max(at - 1, 0), min(at + 2, SIDE)) for at in (row, column))
        neighborhood = {target[y][x] for y in rows for x in columns}
        if neighborhood == {0, 1}:
            p = probs[row][column]
            losses.append(-math.log(p if target[row][column] else 1 - p))
    return sum(losses) / len(losses)


@each_mode
@pytest.mark.parametrize(
    ("name", "reference"), [("bce_dice", slow_dice_loss), ("bce_boundary", slow_boundary_loss)]
)
def test_a_loss_is_added(name, reference, static):
    truth = two_images(*(torch.rand(n, 12, 12).round().to(torch.uint8) for n in (2, 1)))
    packing = Packing(SAMPLES.labels > 0, static)
    logits = torch.randn(len(packing.index), 3, SIDE, SIDE, requires_grad=True)
    head = MaskHead(nn.Identity(), nn.Identity(), CONVENTIONS["detlite"])
    cross_entropy = head.losses(logits, packing, SAMPLES, truth)["loss_mask"]
    head.additional_loss = MASK_LOSSES[name]
    added = head.losses(logits, packing, SAMPLES, truth)["loss_mask"] - cross_entropy
    instances, boxes = torch.tensor([1, 0, 2]), SAMPLES.boxes[SAMPLES.labels > 0]
    targets = crop_masks(*truth.masks.tensors(), instances, boxes, SIDE, False)
    probs = logits[packing.valid, torch.tensor([1, 2, 2])].sigmoid()
    expected = map(reference, probs.tolist(), targets.tolist())
    assert added.item() == pytest.approx(sum(expected) / 3, rel=1e-4)
    added.backward()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_mask_without_a_boundary_has_no_boundary_loss(value):
    logits = torch.randn(2, 4, 4, requires_grad=True)
    result = boundary_loss(logits, torch.full((2, 4, 4), value))
    torch.testing.assert_close(result, torch.zeros(2))
    result.sum().backward()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize(("value", "loss"), [(0.0, 0.0), (1.0, 0.0), (-1.0, 1.0)])
def test_dice_loss_of_extreme_masks(value, loss):
    target = torch.full((2, 4, 4), abs(value))
    logits = torch.full((2, 4, 4), 60.0 if value > 0 else -60.0, requires_grad=True)
    result = dice_loss(logits, target)
    # Of an empty mask and target it is 1, without a gradient.
    torch.testing.assert_close(result, torch.full((2,), loss if value else 1.0))
    result.sum().backward()
    assert logits.grad.isfinite().all()


def test_the_config_chooses_the_mask_loss(tiny_config):
    key = "MODEL.ROI_MASK_HEAD.LOSS"
    for name, loss in (("bce", None), ("bce_dice", dice_loss), ("bce_boundary", boundary_loss)):
        assert build_model(tiny_config(key, name)).roi_heads.mask.additional_loss is loss
    with pytest.raises(ConfigError, match=rf"{key} is 'dice', .*'bce', 'bce_dice', 'bce_boundary'"):
        tiny_config(key, "dice")


def test_soft_targets_are_averages_of_bitmaps():
    masks = torch.zeros(1, 12, 12, dtype=torch.uint8)
    masks[0, :, :3] = 1
    samples = Samples(torch.tensor([[[0.0, 0, 12, 12]]]), torch.tensor([[1]]), torch.tensor([[0]]))
    truth = GroundTruth(samples.boxes, samples.labels, PackedMasks.from_bitmaps(masks))
    head = MaskHead(nn.Identity(), nn.Identity(), CONVENTIONS["torchvision"])
    logits, packing = torch.randn(1, 2, 2, 2), Packing(samples.labels > 0, False)
    expected = crop_masks(
        truth.masks.values, truth.masks.pieces, truth.masks.instances, truth.masks.frames,
        torch.tensor([0]), samples.boxes[0], 2, True,
    )  # fmt: skip
    assert 0 < expected[0, 0, 0] < 1
    loss = head.losses(logits, packing, samples, truth)["loss_mask"]
    torch.testing.assert_close(loss, F.binary_cross_entropy_with_logits(logits[:, 1], expected))


@each_mode
@pytest.mark.parametrize("samples", [4, 0])
def test_loss_without_foreground_is_zero_and_connected(static, samples):
    background = Samples(
        torch.rand(2, samples, 4), torch.zeros(2, samples, dtype=torch.int64),
        torch.zeros(2, samples, dtype=torch.int64),
    )  # fmt: skip
    truth = GroundTruth(
        torch.zeros(2, 1, 4),
        torch.zeros(2, 1, dtype=torch.int64),
        PackedMasks.collate([PackedMasks.from_bitmaps(torch.zeros(0, 8, 8).byte())] * 2, 1),
    )
    packing = Packing(background.labels > 0, static)
    logits = torch.randn(len(packing.index), 3, SIDE, SIDE, requires_grad=True)
    loss = MASK_HEAD.losses(logits, packing, background, truth)["loss_mask"]
    assert loss.item() == 0
    loss.backward()
    assert not logits.grad.any()


def test_probabilities_select_the_mask_of_the_label():
    logits = torch.randn(2, 3, SIDE, SIDE)
    result = MASK_HEAD.probabilities(logits, torch.tensor([2, 1]))
    torch.testing.assert_close(result, torch.stack([logits[0, 2], logits[1, 1]]).sigmoid())


@each_mode
def test_several_heads_are_averaged_and_trained_on_the_same_samples(static):
    several = MaskHead(nn.Identity(), nn.Identity(), CONVENTIONS["detlite"])
    several.more.append(MaskHead(nn.Identity(), nn.Identity(), CONVENTIONS["detlite"]))
    truth = two_images(*(torch.rand(3, 12, 12) > 0.4).to(torch.uint8).split([2, 1]))
    packing = Packing(SAMPLES.labels > 0, static)
    logits = torch.randn(len(packing.index), 2, 3, SIDE, SIDE)
    loss = several.losses(logits, packing, SAMPLES, truth)["loss_mask"]
    each = [MASK_HEAD.losses(own, packing, SAMPLES, truth)["loss_mask"] for own in logits.unbind(1)]
    torch.testing.assert_close(loss, torch.stack(each).mean())
    labels = torch.arange(len(logits)) % 3
    probs = torch.stack([MASK_HEAD.probabilities(own, labels) for own in logits.unbind(1)])
    torch.testing.assert_close(several.probabilities(logits, labels), probs.mean(dim=0))


# ---- parts


def test_number_of_mask_heads(tiny_config, make_batch):
    model = build_model(tiny_config("MODEL.ROI_MASK_HEAD.NUM_HEADS", 3))
    head = model.roi_heads.mask
    assert len(head.more) == 2
    model(*make_batch(1))["loss_mask"].backward()
    for part in (head, *head.more):
        assert part.predictor.mask_fcn_logits.weight.grad.any()


KEYPOINTS = [
    "MODEL.KEYPOINT_ON", True, "MODEL.MASK_ON", False,
    "MODEL.ROI_KEYPOINT_HEAD.SHARE_BOX_FEATURE_EXTRACTOR", False,
    "MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS", (8, 8),
    "MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES", 5,
    "MODEL.ROI_KEYPOINT_HEAD.RESOLUTION", 56,
]  # fmt: skip

KEYPOINT_HEAD = KeypointHead(nn.Identity(), nn.Identity(), CONVENTIONS["detlite"])


def add_keypoints(targets):
    for target in targets:
        count = len(target["boxes"])
        target["keypoints"] = torch.cat(
            [target["boxes"][:, None, :2] + torch.rand(count, 5, 2) * 15, torch.ones(count, 5, 1)],
            dim=2,
        )
    return targets


def test_model_learns_and_predicts_keypoints(tiny_config, make_batch):
    images, targets = make_batch(2, 0, 1)
    limits = ("MODEL.ROI_HEADS.SCORE_THRESH", 0.0, "MODEL.ROI_HEADS.DETECTIONS_PER_IMG", 7)
    model = build_model(tiny_config(*KEYPOINTS, *limits))
    losses = model(images, add_keypoints(targets))
    assert "loss_mask" not in losses
    assert losses["loss_keypoint"] > 1
    losses["loss_keypoint"].backward()
    head = model.roi_heads.keypoint
    assert head.predictor.kps_score_lowres.weight.grad.abs().sum() > 0
    for result, image in zip(model.eval()(images), images, strict=True):
        count = len(result["boxes"])
        assert count == 7
        assert result["keypoints"].shape == (count, 5, 3)
        assert result["keypoints_scores"].shape == (count, 5)
        assert (result["keypoints"][..., 2] == 1).all()
        low, high = result["boxes"][:, None, :2], result["boxes"][:, None, 2:]
        inside = (result["keypoints"][..., :2] >= low) & (result["keypoints"][..., :2] <= high + 1)
        assert inside.all()
        assert image.shape[0] == 3


def test_head_pools_from_a_c4_map(tiny_config):
    model = build_model(tiny_config(*KEYPOINTS, c4=True))
    extractor = model.roi_heads.keypoint.feature_extractor
    assert extractor.pooler.scales == (1 / 16,)
    level = torch.rand(1, model.backbone.out_channels, 6, 6)
    assert extractor([level], torch.tensor([[0.0, 0, 0, 50, 40]])).shape == (1, 8, 14, 14)


@each_mode
def test_loss_is_the_mean_over_labelled_keypoints(static):
    """Two images have three foreground samples, a background sample and padding."""
    boxes = torch.tensor([[[0.0, 0, 40, 40], [10, 10, 50, 50], [0, 0, 9, 9]],
                          [[5, 5, 60, 60], [0, 0, 9, 9], [0, 0, 0, 0]]])  # fmt: skip
    samples = Samples(
        boxes, torch.tensor([[1, 1, 0], [1, 0, -1]]), torch.tensor([[2, 0, 0], [1, 0, 0]])
    )
    keypoints = torch.rand(2, 3, 4, 3) * 60
    keypoints[..., 2] = torch.tensor([2, 1, 0, 2])
    truth = GroundTruth(torch.zeros(2, 3, 4), torch.ones(2, 3, dtype=torch.int64), None, keypoints)
    packing = Packing(samples.labels > 0, static)
    maps = torch.randn(len(packing.index), 4, 8, 8)
    loss = KEYPOINT_HEAD.losses(maps, packing, samples, truth)["loss_keypoint"]
    own = torch.stack([keypoints[0, 2], keypoints[0, 0], keypoints[1, 1]])
    cells, valid = to_heatmap_cells(own, torch.cat([boxes[0, :2], boxes[1, :1]]), 8)
    assert 0 < valid.sum() < valid.numel()
    torch.testing.assert_close(
        loss, F.cross_entropy(maps[packing.valid].flatten(2)[valid], cells[valid])
    )


@each_mode
@pytest.mark.parametrize("label", [1, 0])
def test_loss_without_labelled_keypoints_is_zero(static, label):
    samples = Samples(
        torch.tensor([[[0.0, 0, 9, 9]]]), torch.tensor([[label]]), torch.tensor([[0]])
    )
    truth = GroundTruth(torch.zeros(1, 1, 4), torch.ones(1, 1, dtype=torch.int64), None,
                        torch.zeros(1, 1, 4, 3))  # fmt: skip
    packing = Packing(samples.labels > 0, static)
    maps = torch.randn(len(packing.index), 4, 8, 8, requires_grad=True)
    loss = KEYPOINT_HEAD.losses(maps, packing, samples, truth)["loss_keypoint"]
    loss.backward()
    assert loss == 0
    assert maps.grad.abs().sum() == 0


@pytest.mark.parametrize(
    ("opts", "message"),
    [
        (["MODEL.ROI_KEYPOINT_HEAD.RESOLUTION", 14], "RESOLUTION is 14, but the head predicts 56"),
        (
            ["MODEL.ROI_KEYPOINT_HEAD.SHARE_BOX_FEATURE_EXTRACTOR", True],
            "computes vectors, not maps",
        ),
    ],
)
def test_inconsistent_keys(tiny_config, opts, message):
    with pytest.raises(ConfigError, match=message):
        build_model(tiny_config(*KEYPOINTS, *opts))


def test_targets_with_another_number_of_keypoints(tiny_config, make_batch):
    images, targets = make_batch(2)
    targets[0]["keypoints"] = torch.ones(2, 4, 3)
    with pytest.raises(ValueError, match=r"targets have 4 keypoints, but the model 5: set MODEL"):
        build_model(tiny_config(*KEYPOINTS))(images, targets)


@pytest.mark.parametrize(
    ("keypoints", "message"),
    [(None, "has no keypoints"), (torch.zeros(2, 5, 2), r"must be \[2, K, 3\]")],
)
def test_bad_targets(tiny_config, make_batch, keypoints, message):
    images, targets = make_batch(2)
    if keypoints is not None:
        targets[0]["keypoints"] = keypoints
    with pytest.raises(ValueError, match=message):
        build_model(tiny_config(*KEYPOINTS))(images, targets)


@pytest.mark.parametrize(("resolution", "predicted"), [(14, 28), (30, 28)])
def test_resolution_must_be_that_of_the_head(tiny_config, resolution, predicted):
    with pytest.raises(
        ConfigError, match=rf"RESOLUTION is {resolution}, but the head predicts {predicted}"
    ):
        build_model(tiny_config("MODEL.ROI_MASK_HEAD.RESOLUTION", resolution))


def test_vector_features_cannot_be_shared(tiny_config):
    with pytest.raises(ConfigError, match="FPN2MLPFeatureExtractor computes vectors, not maps"):
        build_model(tiny_config("MODEL.ROI_MASK_HEAD.SHARE_BOX_FEATURE_EXTRACTOR", True))


@pytest.mark.parametrize("key", ["FEATURE_EXTRACTOR", "PREDICTOR"])
def test_unknown_name_is_reported_with_its_key(tiny_config, key):
    with pytest.raises(ConfigError, match=rf"MODEL\.ROI_MASK_HEAD\.{key}: unknown mask .* 'None'"):
        build_model(tiny_config(f"MODEL.ROI_MASK_HEAD.{key}", "None"))
