import pytest
import torch
from torch import nn
from torch.nn import functional as F

from detlite.conventions import CONVENTIONS
from detlite.modeling.build import build_model
from detlite.modeling.roi_heads.keypoint_head import KeypointHead
from detlite.modeling.roi_heads.mask_head import MaskHead
from detlite.ops import crop_masks
from detlite.structures.instances import GroundTruth, Samples
from detlite.structures.keypoints import to_heatmap_cells
from detlite.structures.masks.packed import PackedMasks
from detlite.structures.padding import RowPacking
from tests.modeling.roi_heads.box_heads import each_mode

SIDE = 6
MASK_HEAD = MaskHead(nn.Identity(), nn.Identity(), CONVENTIONS["detlite"])


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
def test_loss_is_the_mean_over_the_cells_of_the_labels(static):
    masks = (torch.rand(3, 12, 12) > 0.4).to(torch.uint8)
    truth = two_images(masks[:2], masks[2:])
    packing = RowPacking(SAMPLES.labels > 0, static)
    logits = torch.randn(len(packing.index), 3, SIDE, SIDE)
    loss = MASK_HEAD.losses(logits, packing, SAMPLES, truth)["loss_mask"]
    rows = [packing.index.tolist().index(entry) for entry in (0, 1, 4)]
    boxes, instances = SAMPLES.boxes.flatten(0, 1)[[0, 1, 4]], torch.tensor([1, 0, 2])
    targets = crop_masks(*PackedMasks.from_bitmaps(masks).tensors(), instances, boxes, SIDE, False)
    assert all(0 < target.sum() < SIDE**2 for target in targets)
    own = logits[rows, [1, 2, 2]]  # the logits of the labels
    torch.testing.assert_close(loss, F.binary_cross_entropy_with_logits(own, targets))


def test_soft_targets_are_averages_of_bitmaps():
    masks = torch.zeros(1, 12, 12, dtype=torch.uint8)
    masks[0, :, :3] = 1
    samples = Samples(torch.tensor([[[0.0, 0, 12, 12]]]), torch.tensor([[1]]), torch.tensor([[0]]))
    truth = GroundTruth(samples.boxes, samples.labels, PackedMasks.from_bitmaps(masks))
    head = MaskHead(nn.Identity(), nn.Identity(), CONVENTIONS["torchvision"])
    logits, packing = torch.randn(1, 2, 2, 2), RowPacking(samples.labels > 0, False)
    expected = crop_masks(*truth.masks.tensors(), torch.tensor([0]), samples.boxes[0], 2, True)
    assert 0 < expected[0, 0, 0] < 1
    loss = head.losses(logits, packing, samples, truth)["loss_mask"]
    torch.testing.assert_close(loss, F.binary_cross_entropy_with_logits(logits[:, 1], expected))


@each_mode
@pytest.mark.parametrize("samples", [4, 0])
def test_loss_without_foreground_is_zero_and_connected(static, samples):
    none = torch.zeros(2, samples, dtype=torch.int64)
    background = Samples(torch.rand(2, samples, 4), none, none)
    truth = two_images(torch.zeros(2, 12, 12).byte(), torch.zeros(1, 12, 12).byte())
    packing = RowPacking(background.labels > 0, static)
    logits = torch.randn(len(packing.index), 3, SIDE, SIDE, requires_grad=True)
    loss = MASK_HEAD.losses(logits, packing, background, truth)["loss_mask"]
    assert loss.item() == 0
    loss.backward()
    assert not logits.grad.any()


def test_probabilities_select_the_mask_of_the_label():
    logits = torch.randn(2, 3, SIDE, SIDE)
    result = MASK_HEAD.outputs(logits, torch.tensor([2, 1]))
    torch.testing.assert_close(result, torch.stack([logits[0, 2], logits[1, 1]]).sigmoid())


@each_mode
def test_several_heads_are_averaged_and_trained_on_the_same_samples(static):
    several = MaskHead(nn.Identity(), nn.Identity(), CONVENTIONS["detlite"])
    several.more.append(MaskHead(nn.Identity(), nn.Identity(), CONVENTIONS["detlite"]))
    truth = two_images(*(torch.rand(3, 12, 12) > 0.4).to(torch.uint8).split([2, 1]))
    packing = RowPacking(SAMPLES.labels > 0, static)
    logits = torch.randn(len(packing.index), 2, 3, SIDE, SIDE)
    loss = several.losses(logits, packing, SAMPLES, truth)["loss_mask"]
    each = [MASK_HEAD.losses(own, packing, SAMPLES, truth)["loss_mask"] for own in logits.unbind(1)]
    torch.testing.assert_close(loss, torch.stack(each).mean())
    labels = torch.arange(len(logits)) % 3
    probs = torch.stack([MASK_HEAD.outputs(own, labels) for own in logits.unbind(1)])
    torch.testing.assert_close(several.outputs(logits, labels), probs.mean(dim=0))


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
