"""Numeric conventions of frameworks, compared with the framework or a formula."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torchvision.models.detection.anchor_utils import AnchorGenerator as TorchvisionAnchors
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import roi_align

from detlite.conventions import CONVENTIONS
from detlite.data.transforms.detection_transform import DetectionTransform
from detlite.data.transforms.resize import RandomShortestSize, resize_shortest
from detlite.modeling.build import build_model
from detlite.modeling.roi_heads.keypoint_head import KeypointHead
from detlite.modeling.roi_heads.mask_head import MaskHead
from detlite.modeling.roi_heads.pooler import POOLERS, Pooler
from detlite.modeling.rpn.anchors import AnchorGenerator
from detlite.structures import boxes as box_ops
from detlite.structures.instances import GroundTruth, Samples
from detlite.structures.keypoints import to_heatmap_cells
from detlite.structures.masks.packed import PackedMasks
from detlite.structures.masks.pasting import paste_boxes, paste_probabilities
from detlite.structures.padding import RowPacking

INCLUSIVE = CONVENTIONS["maskrcnn-benchmark"]
RATIOS = (0.5, 1.0, 2.0)


def test_anchor_positions_match_torchvision():
    sizes = ((32,), (64,), (128,), (256,), (512,))
    # 5 x 3 cells of stride 64 over 288 x 160 pixels
    shapes = [(72, 40), (36, 20), (18, 10), (9, 5), (5, 3)]
    images = ImageList(torch.zeros(1, 3, 288, 160), [(280, 150)])
    expected = TorchvisionAnchors(sizes, (RATIOS,) * 5)(
        images, [torch.zeros(1, 1, *shape) for shape in shapes]
    )[0]
    ours = AnchorGenerator(sizes, RATIOS, (4, 8, 16, 32, 64), CONVENTIONS["torchvision"])(shapes)
    torch.testing.assert_close(torch.cat(ours), expected)
    unfit = CONVENTIONS["torchvision"].override(["anchor_spacing=stride"])
    assert not torch.equal(
        ours[-1], AnchorGenerator(sizes[-1:], RATIOS, (64,), unfit)(shapes[-1:])[0]
    )


def test_anchors_are_rounded_at_the_size_of_a_cell():
    (anchors,) = AnchorGenerator([(32, 64)], RATIOS, (16,), INCLUSIVE)([(1, 1)])
    # 16 x 16 at ratio 0.5 is 23 x 12 (22.6 x 11.5), at ratio 2 is 11 x 22 (11.3 x 22)
    sides = anchors[:, 2:] - anchors[:, :2]
    assert sides.tolist() == [[46, 24], [92, 48], [32, 32], [64, 64], [22, 44], [44, 88]]
    assert ((anchors[:, :2] + anchors[:, 2:]) / 2 == 8).all()


def test_inclusive_pooling_is_one_pixel_shorter():
    features = torch.randn(1, 3, 16, 16)
    boxes = torch.tensor([[4.0, 8, 100, 60], [10, 10, 10.4, 50]])
    pooler = Pooler(POOLERS.get("ROIAlign", ""), 7, [8], 2, INCLUSIVE)
    shorter = torch.tensor([[4.0, 8, 99, 59], [10, 10, 10, 49]])
    expected = roi_align(features, [shorter], (7, 7), 1 / 8, 2)
    torch.testing.assert_close(pooler([features], F.pad(boxes, (1, 0))), expected)


@pytest.mark.parametrize("size", [(40, 60), (97, 31)])
def test_whole_pixel_paste_matches_torchvision(size):
    boxes = torch.tensor(
        [[3.2, 4.7, 20.1, 30.9], [0, 0, 31, 40], [10.5, 2, 11, 39], [-0.4, 5, 8.2, 12.6]]
    )
    probs = torch.rand(len(boxes), 28, 28)
    expected = paste_masks_in_image(probs[:, None], boxes, size)[:, 0]
    result = paste_probabilities(probs, paste_boxes(boxes, 28, CONVENTIONS["torchvision"]), size)
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", [(480, 640), (427, 500), (300, 1000), (7, 7)])
def test_interpolated_resize_matches_torchvision(size):
    image = torch.randint(0, 256, (3, *size), dtype=torch.uint8)
    transform = GeneralizedRCNNTransform(80, 133, [0.0] * 3, [1.0] * 3)
    expected = transform.resize(image.float() / 255, None)[0]
    torch.testing.assert_close(resize_shortest(image, 80, 133, "interpolate"), expected)


def test_epsilon_of_frozen_batch_norm(tiny_config):
    trained = tiny_config("MODEL.RESNETS.NORM", "BN", "MODEL.CONVENTION", "torchvision")
    assert build_model(trained).backbone.body.stem.norm1.eps == 1e-5
    cfg = tiny_config("MODEL.RESNETS.NORM", "FrozenBN", "MODEL.CONVENTION", "torchvision")
    norm = build_model(cfg).backbone.body.stem.norm1
    assert norm.eps == 0
    norm.running_var.fill_(0.25)
    x = torch.randn(1, 16, 4, 4)
    torch.testing.assert_close(norm(x), 2 * x)


def test_rescaling_of_inclusive_boxes_for_training_and_testing_is_consistent():
    boxes = torch.tensor([[3.0, 4, 30, 17], [10, 0, 61, 40], [5, 5, 6, 6.5]])
    resize = RandomShortestSize([100], 1000, INCLUSIVE.resize)
    target = {"boxes": boxes, "labels": torch.ones(3, dtype=torch.int64)}
    image, after = DetectionTransform(resize, convention=INCLUSIVE)(
        torch.zeros(3, 45, 70, dtype=torch.uint8), target
    )
    net = (image.shape[1], image.shape[2])
    assert net == (100, 155)
    first = (after["boxes"][0] * torch.tensor([70 / 155, 0.45, 70 / 155, 0.45])).tolist()
    assert first[2] < 30  # the last pixel was not enlarged
    torch.testing.assert_close(box_ops.rescale(after["boxes"], net, (45, 70), INCLUSIVE), boxes)


def test_heat_maps_of_inclusive_boxes_are_trained_and_decoded_consistently():
    boxes = torch.tensor([[10.0, 20, 67, 77], [5, 5, 5.5, 30]])  # the second has no width left
    shorter = torch.tensor([[10.0, 20, 66, 76], [5, 5, 5, 29]])
    keypoints = torch.tensor([[[66.0, 76, 2], [10, 20, 2], [38, 48.5, 1]]]).repeat(2, 1, 1)
    labels, index = torch.tensor([[1, 1]]), torch.tensor([[0, 1]])
    samples = Samples(boxes[None], labels, index)
    truth = GroundTruth(boxes[None], labels, None, keypoints[None])
    maps = torch.randn(2, 3, 8, 8)
    head = KeypointHead(nn.Identity(), nn.Identity(), INCLUSIVE)
    cells, valid = to_heatmap_cells(keypoints, shorter, 8)
    assert cells[0].tolist() == [63, 0, 4 * 8 + 4]
    assert valid.tolist() == [[True] * 3, [False] * 3]
    expected = F.cross_entropy(maps.flatten(2)[valid], cells[valid])
    loss = head.losses(maps, RowPacking(labels > 0, False), samples, truth)["loss_keypoint"]
    torch.testing.assert_close(loss, expected)


def test_masks_of_inclusive_boxes_are_trained_and_pasted_consistently():
    masks = torch.zeros(1, 40, 40, dtype=torch.uint8)
    masks[0, 8:24, 8:24] = 1
    logits = torch.randn(1, 2, 16, 16)
    boxes, labels = torch.tensor([[[8.0, 8, 25, 25]]]), torch.tensor([[1]])
    truth = GroundTruth(boxes, labels, PackedMasks.from_bitmaps(masks))
    head = MaskHead(nn.Identity(), nn.Identity(), INCLUSIVE)
    samples = Samples(boxes, labels, torch.tensor([[0]]))
    loss = head.losses(logits, RowPacking(labels > 0, False), samples, truth)["loss_mask"]
    everywhere = F.binary_cross_entropy_with_logits(logits[:, 1], torch.ones(1, 16, 16))
    torch.testing.assert_close(loss, everywhere)
