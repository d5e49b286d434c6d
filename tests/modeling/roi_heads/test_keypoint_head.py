import pytest
import torch
from torch import nn
from torch.nn import functional as F

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


def test_the_number_of_keypoints(tiny_config, make_batch):
    images, targets = make_batch(2)
    with pytest.raises(ValueError, match="targets have 3 keypoints, but the model 5: set MODEL"):
        build_model(tiny_config(*KEYPOINTS))(images, targets)
