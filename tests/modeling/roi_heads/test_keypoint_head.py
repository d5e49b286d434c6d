import pytest
import torch
from torch import nn
from torch.nn import functional as F

from detlite.config import ConfigError
from detlite.conventions import CONVENTIONS
from detlite.modeling.build import build_model
from detlite.modeling.roi_heads.keypoint_head import KeypointHead
from detlite.structures.instances import GroundTruth, Samples
from detlite.structures.keypoints import to_heatmap_cells
from detlite.structures.padding import RowPacking
from tests.modeling.roi_heads.box_heads import each_mode

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
    packing = RowPacking(samples.labels > 0, static)
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
    packing = RowPacking(samples.labels > 0, static)
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


@pytest.mark.parametrize(
    ("keypoints", "message"),
    [
        (None, "has no keypoints"),
        (torch.zeros(2, 5, 2), r"must be \[2, K, 3\]"),
        (torch.ones(2, 4, 3), "targets have 4 keypoints, but the model 5: set MODEL"),
    ],
)
def test_bad_targets(tiny_config, make_batch, keypoints, message):
    images, targets = make_batch(2)
    del targets[0]["keypoints"]
    if keypoints is not None:
        targets[0]["keypoints"] = keypoints
    with pytest.raises(ValueError, match=message):
        build_model(tiny_config(*KEYPOINTS))(images, targets)
