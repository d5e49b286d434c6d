from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from detlite.config import ConfigError
from detlite.modeling.keypoint_head import KeypointHead
from detlite.modeling.rcnn import build_model
from detlite.modeling.suppression import DetectionLimits
from detlite.structures.keypoints import to_heatmap_cells

OPTS = [
    "MODEL.KEYPOINT_ON", True, "MODEL.MASK_ON", False,
    "MODEL.ROI_KEYPOINT_HEAD.SHARE_BOX_FEATURE_EXTRACTOR", False,
    "MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS", (8, 8),
    "MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES", 5,
    "MODEL.ROI_KEYPOINT_HEAD.RESOLUTION", 56,
]  # fmt: skip


def with_keypoints(targets):
    for target in targets:
        count = len(target["boxes"])
        target["keypoints"] = torch.cat(
            [target["boxes"][:, None, :2] + torch.rand(count, 5, 2) * 15, torch.ones(count, 5, 1)],
            dim=2,
        )
    return targets


def test_model_learns_and_predicts_keypoints(tiny_config, make_batch):
    images, targets = make_batch(2, 0, 1)
    model = build_model(tiny_config(*OPTS))
    losses = model(images, with_keypoints(targets))
    assert "loss_mask" not in losses
    assert losses["loss_keypoint"] > 1
    losses["loss_keypoint"].backward()
    head = model.roi_heads.keypoint
    assert head.predictor.kps_score_lowres.weight.grad.abs().sum() > 0
    model.eval().limits = DetectionLimits(0.0, 0.5, 7)
    for found, image in zip(model(images), images, strict=True):
        count = len(found["boxes"])
        assert found["keypoints"].shape == (count, 5, 3)
        assert found["keypoints_scores"].shape == (count, 5)
        assert (found["keypoints"][..., 2] == 1).all()
        low, high = found["boxes"][:, None, :2], found["boxes"][:, None, 2:]
        inside = (found["keypoints"][..., :2] >= low) & (found["keypoints"][..., :2] <= high + 1)
        assert inside.all()
        assert image.shape[0] == 3


def test_it_pools_from_the_one_map_of_a_c4_body(tiny_config):
    model = build_model(tiny_config(*OPTS, c4=True))
    extractor = model.roi_heads.keypoint.feature_extractor
    assert extractor.pooler.scales == (1 / 16,)
    level = torch.rand(1, model.backbone.out_channels, 6, 6)
    assert extractor([level], [torch.tensor([[0.0, 0, 50, 40]])]).shape == (1, 8, 14, 14)


def test_loss_is_the_mean_over_labelled_keypoints():
    boxes = torch.tensor([[0.0, 0, 40, 40], [10, 10, 50, 50]])
    keypoints = torch.rand(3, 4, 3) * 60
    keypoints[..., 2] = torch.tensor([2, 1, 0, 2])
    target = {"matched": torch.tensor([2, 0]), "keypoints": keypoints}
    maps = torch.randn(2, 4, 8, 8)
    loss = KeypointHead(nn.Identity(), nn.Identity()).loss(maps, [boxes], [target])
    cells, valid = to_heatmap_cells(keypoints[[2, 0]], boxes, 8)
    wanted = F.cross_entropy(maps.flatten(2)[valid], cells[valid])
    torch.testing.assert_close(loss["loss_keypoint"], wanted)


def test_nothing_labelled_is_no_loss():
    maps = torch.randn(1, 4, 8, 8, requires_grad=True)
    target = {"matched": torch.tensor([0]), "keypoints": torch.zeros(1, 4, 3)}
    head = KeypointHead(nn.Identity(), nn.Identity())
    loss = head.loss(maps, [torch.tensor([[0.0, 0, 9, 9]])], [target])["loss_keypoint"]
    loss.backward()
    assert loss == 0
    assert maps.grad.abs().sum() == 0


@pytest.mark.parametrize(
    ("opts", "message"),
    [
        (["MODEL.ROI_KEYPOINT_HEAD.RESOLUTION", 14], "RESOLUTION is 14, but the head gives 56"),
        (["MODEL.ROI_KEYPOINT_HEAD.SHARE_BOX_FEATURE_EXTRACTOR", True], "gives vectors, not maps"),
    ],
)
def test_contradicting_keys(tiny_config, opts, message):
    with pytest.raises(ConfigError, match=message):
        build_model(tiny_config(*OPTS, *opts))


def test_other_numbers_of_keypoints_than_the_models(tiny_config, make_batch):
    images, targets = make_batch(2)
    targets[0]["keypoints"] = torch.ones(2, 4, 3)
    with pytest.raises(ValueError, match=r"targets have 4 keypoints, but the model 5: set MODEL"):
        build_model(tiny_config(*OPTS))(images, targets)


@pytest.mark.parametrize(
    ("keypoints", "message"),
    [(None, "has no keypoints"), (torch.zeros(2, 5, 2), r"must be \[2, P, 3\]")],
)
def test_bad_targets(tiny_config, make_batch, keypoints, message):
    images, targets = make_batch(2)
    if keypoints is not None:
        targets[0]["keypoints"] = keypoints
    with pytest.raises(ValueError, match=message):
        build_model(tiny_config(*OPTS))(images, targets)
