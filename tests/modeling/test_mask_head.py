from __future__ import annotations

import pytest
import torch
from torch import nn

from detlite.config import ConfigError
from detlite.modeling.mask_head import MaskHead, crop_masks
from detlite.modeling.rcnn import build_model

SIDE = 6


class GivenPredictor(nn.Module):
    """Predicts what it is given."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, x):
        return self.logits


# ---- crops


def test_crop_of_a_mask_by_its_own_box_is_full():
    masks = torch.zeros(2, 20, 30, dtype=torch.uint8)
    masks[0, 4:12, 6:20] = 1
    masks[1] = 1 - masks[0]
    boxes = torch.tensor([[6.0, 4, 20, 12]]).repeat(2, 1)
    crops = crop_masks(masks, torch.tensor([0, 1]), boxes, 14)
    assert crops.dtype == torch.float32
    assert (crops[0] == 1).all()
    assert (crops[1] == 0).all()


def test_crop_at_full_resolution_is_the_mask_itself():
    masks = (torch.rand(3, 16, 16) > 0.5).to(torch.uint8)
    index = torch.tensor([2, 0, 2])
    crops = crop_masks(masks, index, torch.tensor([[0.0, 0, 16, 16]]).repeat(3, 1), 16)
    assert torch.equal(crops, masks[index].float())


def test_crop_averages_whole_cells():
    masks = (torch.rand(1, 12, 12) > 0.5).to(torch.uint8)
    crop = crop_masks(masks, torch.tensor([0]), torch.tensor([[0.0, 0, 12, 12]]), 4)[0]
    for row in range(4):
        for column in range(4):
            mean = masks[0, 3 * row : 3 * row + 3, 3 * column : 3 * column + 3].float().mean()
            assert crop[row, column] == (mean >= 0.5)


def test_cell_that_is_half_covered_belongs_to_the_crop():
    masks = torch.zeros(1, 4, 4, dtype=torch.uint8)
    masks[0, :, 0] = 1
    crop = crop_masks(masks, torch.tensor([0]), torch.tensor([[0.0, 0, 4, 4]]), 2)[0]
    assert crop.tolist() == [[1, 0], [1, 0]]


def test_crop_outside_the_image_is_empty():
    masks = torch.ones(1, 10, 10, dtype=torch.uint8)
    crop = crop_masks(masks, torch.tensor([0]), torch.tensor([[-10.0, 0, 10, 10]]), 4)[0]
    assert crop.tolist() == [[0, 0, 1, 1]] * 4


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool])
def test_types_of_masks(dtype):
    masks = torch.ones(1, 8, 8).to(dtype)
    assert crop_masks(masks, torch.tensor([0]), torch.tensor([[0.0, 0, 8, 8]]), 2).sum() == 4


def test_no_boxes_to_crop():
    none = torch.zeros(0, dtype=torch.int64)
    assert crop_masks(torch.zeros(0, 8, 8), none, torch.zeros(0, 4), 14).shape == (0, 14, 14)
    assert crop_masks(torch.zeros(3, 8, 8), none, torch.zeros(0, 4), 14).shape == (0, 14, 14)


# ---- loss and prediction


def test_loss_pixel_by_pixel():
    masks = (torch.rand(2, 12, 12) > 0.4).to(torch.uint8)
    boxes = [torch.tensor([[0.0, 0, 12, 12], [1, 2, 9, 11]]), torch.tensor([[3.0, 3, 9, 9]])]
    targets = [
        {"labels": torch.tensor([1, 2]), "matched": torch.tensor([1, 0]), "masks": masks},
        {"labels": torch.tensor([2]), "matched": torch.tensor([0]), "masks": masks[1:]},
    ]
    logits = torch.randn(3, 3, SIDE, SIDE)
    loss = MaskHead(None, GivenPredictor(logits)).loss(torch.zeros(3), boxes, targets)["loss_mask"]
    slow, instances = 0.0, [(masks[1], 1), (masks[0], 2), (masks[1], 2)]
    for n, ((mask, label), box) in enumerate(zip(instances, torch.cat(boxes), strict=True)):
        wanted = crop_masks(mask[None], torch.tensor([0]), box[None], SIDE)[0]
        for row in range(SIDE):
            for column in range(SIDE):
                p = logits[n, label, row, column].sigmoid()
                slow -= (p if wanted[row, column] else 1 - p).log().item()
    assert loss.item() == pytest.approx(slow / (3 * SIDE * SIDE), rel=1e-5)


def test_loss_without_foreground_is_zero_and_connected():
    logits = torch.zeros(0, 3, SIDE, SIDE, requires_grad=True)
    none = torch.zeros(0, dtype=torch.int64)
    targets = [{"labels": none, "matched": none, "masks": torch.zeros(0, 8, 8)}]
    head = MaskHead(None, GivenPredictor(logits))
    loss = head.loss(torch.zeros(0), [torch.zeros(0, 4)], targets)["loss_mask"]
    assert loss.item() == 0
    loss.backward()
    assert logits.grad is not None


def test_prediction_takes_the_mask_of_the_label():
    logits = torch.randn(2, 3, SIDE, SIDE)
    found = MaskHead(None, GivenPredictor(logits)).predict(torch.zeros(2), torch.tensor([2, 1]))
    wanted = torch.stack([logits[0, 2], logits[1, 1]]).sigmoid()
    torch.testing.assert_close(found["mask_probs"], wanted)


# ---- parts


def test_conv_layers_and_dilation(tiny_config):
    prefix = "MODEL.ROI_MASK_HEAD."
    cfg = tiny_config(
        prefix + "CONV_LAYERS", (8, 12), prefix + "DILATION", 2, prefix + "USE_GN", True
    )
    extractor = build_model(cfg).roi_heads.mask.feature_extractor
    convs = [m for m in extractor.modules() if isinstance(m, nn.Conv2d)]
    assert [(c.in_channels, c.out_channels, c.dilation) for c in convs] == [
        (16, 8, (2, 2)), (8, 12, (2, 2)),
    ]  # fmt: skip
    assert all(c.bias is None for c in convs)
    assert sum(isinstance(m, nn.GroupNorm) for m in extractor.modules()) == 2


@pytest.mark.parametrize(("resolution", "given"), [(14, 28), (30, 28)])
def test_resolution_must_be_what_the_head_gives(tiny_config, resolution, given):
    with pytest.raises(
        ConfigError, match=rf"RESOLUTION is {resolution}, but the head gives {given}"
    ):
        build_model(tiny_config("MODEL.ROI_MASK_HEAD.RESOLUTION", resolution))


def test_vectors_cannot_be_shared(tiny_config):
    with pytest.raises(ConfigError, match="FPN2MLPFeatureExtractor gives vectors, not maps"):
        build_model(tiny_config("MODEL.ROI_MASK_HEAD.SHARE_BOX_FEATURE_EXTRACTOR", True))


@pytest.mark.parametrize("key", ["FEATURE_EXTRACTOR", "PREDICTOR"])
def test_unknown_part_names_the_key(tiny_config, key):
    with pytest.raises(
        ConfigError, match=rf"MODEL\.ROI_MASK_HEAD\.{key}: no mask .* is called 'None'"
    ):
        build_model(tiny_config(f"MODEL.ROI_MASK_HEAD.{key}", "None"))
