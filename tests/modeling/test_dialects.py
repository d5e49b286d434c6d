"""The numeric choices in which frameworks differ, each against its own framework or formula."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torchvision.models.detection.anchor_utils import AnchorGenerator as TorchvisionAnchors
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import paste_masks_in_image, project_masks_on_boxes
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import roi_align

from detlite.data.resize import RandomShortestSize, get_size, resize_shortest
from detlite.data.transforms import DetectionTransform
from detlite.modeling.anchors import AnchorGenerator
from detlite.modeling.keypoint_head import KeypointHead
from detlite.modeling.mask_head import MaskHead, crop_masks
from detlite.modeling.pooler import POOLERS, Pooler
from detlite.modeling.rcnn import build_model
from detlite.structures import boxes as box_ops
from detlite.structures.keypoints import to_heatmap_cells
from detlite.structures.masks import paste_probabilities
from detlite.structures.output import OutputRules

RATIOS = (0.5, 1.0, 2.0)


def test_anchors_as_torchvision_places_them():
    sizes = ((32,), (64,), (128,), (256,), (512,))
    # 5 x 3 cells of stride 64 over 288 x 160 pixels
    shapes = [(72, 40), (36, 20), (18, 10), (9, 5), (5, 3)]
    images = ImageList(torch.zeros(1, 3, 288, 160), [(280, 150)])
    wanted = TorchvisionAnchors(sizes, (RATIOS,) * 5)(
        images, [torch.zeros(1, 1, *shape) for shape in shapes]
    )[0]
    ours = AnchorGenerator(
        sizes, RATIOS, (4, 8, 16, 32, 64), 0.0, rounding="corners", spacing="fit"
    )(shapes)
    assert torch.equal(torch.cat(ours), wanted)
    assert not torch.equal(
        ours[-1], AnchorGenerator(sizes[-1:], RATIOS, (64,), 0.0, "corners")(shapes[-1:])[0]
    )


def test_anchors_rounded_as_large_as_a_cell():
    (anchors,) = AnchorGenerator([(32, 64)], RATIOS, (16,), 0.5, rounding="cell")([(1, 1)])
    # 16 x 16 at ratio 0.5 is 23 x 12 (22.6 x 11.5), at ratio 2 is 11 x 22 (11.3 x 22)
    sides = anchors[:, 2:] - anchors[:, :2]
    assert sides.tolist() == [[46, 24], [92, 48], [32, 32], [64, 64], [22, 44], [44, 88]]
    assert ((anchors[:, :2] + anchors[:, 2:]) / 2 == 8).all()


def test_inclusive_clip_keeps_a_pixel():
    boxes = torch.tensor([[-9.0, -9, -3, -4], [30, 2, 40, 5], [-2, 3, 25, 30]])
    assert box_ops.clip(boxes, (10, 20), inclusive=True).tolist() == [
        [0, 0, 1, 1],
        [19, 2, 20, 5],
        [0, 3, 20, 10],
    ]


def test_drop_last_pixel_never_reverses():
    boxes = torch.tensor([[1.0, 1, 5, 6], [2, 2, 2.5, 9]])
    assert box_ops.drop_last_pixel(boxes).tolist() == [[1, 1, 4, 5], [2, 2, 2, 8]]


def test_inclusive_pooling_is_one_pixel_shorter():
    features = torch.randn(1, 3, 16, 16)
    boxes = torch.tensor([[4.0, 8, 100, 60], [10, 10, 10.4, 50]])
    pooler = Pooler(POOLERS.get("ROIAlign", ""), 7, [1 / 8], 2, inclusive=True)
    shorter = torch.tensor([[4.0, 8, 99, 59], [10, 10, 10, 49]])
    wanted = roi_align(features, [shorter], (7, 7), 1 / 8, 2)
    torch.testing.assert_close(pooler([features], [boxes]), wanted)


def test_inclusive_regions_keep_their_level():
    boxes = torch.tensor([[0.0, 0, 112, 112]])  # exactly the first size of its level
    features = [torch.full((1, 1, 64, 64), 1.0), torch.full((1, 1, 32, 32), 2.0)]
    pooler = Pooler(POOLERS.get("ROIAlign", ""), 2, [1 / 4, 1 / 8], 2, inclusive=True)
    assert pooler(features, [boxes]).unique().tolist() == [2]


@pytest.mark.parametrize("size", [(40, 60), (97, 31)])
def test_whole_pixel_paste_is_torchvisions(size):
    boxes = torch.tensor(
        [[3.2, 4.7, 20.1, 30.9], [0, 0, 31, 40], [10.5, 2, 11, 39], [-0.4, 5, 8.2, 12.6]]
    )
    probs = torch.rand(len(boxes), 28, 28)
    wanted = paste_masks_in_image(probs[:, None], boxes, size)[:, 0]
    torch.testing.assert_close(
        paste_probabilities(probs, boxes, size, True), wanted, atol=1e-5, rtol=0
    )


def test_inclusive_boxes_at_the_border_are_not_cut():
    # the last pixel of 1066 at 0.6 of its size, and one pixel of the picture on top
    boxes = OutputRules(inclusive=True).boxes(
        torch.tensor([[0.0, 0, 1066, 800]]), (800, 1066), (480, 640)
    )
    wanted = torch.tensor([[0, 0, 1065 * 640 / 1066 + 1, 799 * 480 / 800 + 1]])
    torch.testing.assert_close(boxes, wanted)


def test_inclusive_boxes_are_scaled_by_their_last_pixel():
    boxes = torch.tensor([[10.0, 20, 31, 41]])  # pixels 10 to 30 and 20 to 40
    rules = OutputRules(inclusive=True)
    assert rules.boxes(boxes, (100, 100), (200, 200)).tolist() == [[20, 40, 61, 81]]
    assert rules.boxes(boxes, (100, 100), (100, 100)).tolist() == boxes.tolist()
    probs = torch.rand(1, 28, 28)
    wanted = paste_probabilities(probs, boxes - torch.tensor([0, 0, 1, 1]), (50, 50))
    assert torch.equal(rules.mask_probs(probs, boxes, (50, 50)), wanted)


def test_keypoints_are_scaled_side_by_side():
    points = torch.tensor([[[10.0, 20, 1]]])
    assert OutputRules().keypoints(points, (50, 100), (100, 100)).tolist() == [[[10, 40, 1]]]


def test_soft_mask_targets_are_torchvisions():
    masks = torch.zeros(2, 40, 50, dtype=torch.uint8)
    masks[0, 5:30, 7:33], masks[1, 12:14, 20:45] = 1, 1
    boxes, index = torch.rand(6, 4) * 12, torch.tensor([0, 1, 1, 0, 0, 1])
    boxes[:, 2:] += 20
    wanted = project_masks_on_boxes(masks.float(), boxes, index, 28)
    torch.testing.assert_close(crop_masks(masks, index, boxes, 28, soft=True), wanted)


@pytest.mark.parametrize("size", [(480, 640), (427, 500), (500, 333), (300, 1000), (7, 7)])
def test_interpolated_resize_is_torchvisions(size):
    image = torch.randint(0, 256, (3, *size), dtype=torch.uint8)
    transform = GeneralizedRCNNTransform(80, 133, [0.0] * 3, [1.0] * 3)
    wanted = transform.resize(image.float() / 255, None)[0]
    torch.testing.assert_close(resize_shortest(image, 80, 133, "interpolate"), wanted)


@pytest.mark.parametrize(
    ("size", "wanted"),
    [((480, 640), (800, 1066)), ((640, 480), (1066, 800)), ((427, 500), (800, 936)),
     ((300, 1000), (400, 1333)), ((333, 500), (800, 1201))],
)  # fmt: skip
def test_floor_sizes(size, wanted):
    assert get_size(size, 800, 1333, "floor") == wanted


def test_rpn_loss_over_its_capacity(tiny_config, make_batch):
    images, targets = make_batch(2)
    losses = {}
    for kind in ("sampled", "capacity"):
        torch.manual_seed(0)
        cfg = tiny_config(
            "MODEL.RPN.LOSS_NORMALIZER", kind, "MODEL.RPN.BATCH_SIZE_PER_IMAGE", 10**6
        )
        losses[kind] = build_model(cfg)(images, targets)
    ratio = losses["capacity"]["loss_objectness"] / losses["sampled"]["loss_objectness"]
    assert 0 < ratio < 0.1
    torch.testing.assert_close(
        losses["capacity"]["loss_rpn_box"] / losses["sampled"]["loss_rpn_box"], ratio
    )


def test_epsilon_of_batch_norm(tiny_config):
    cfg = tiny_config("MODEL.RESNETS.NORM", "FrozenBN", "MODEL.RESNETS.BN_EPSILON", 0)
    norm = build_model(cfg).backbone.body.stem.norm1
    assert norm.eps == 0
    norm.running_var.fill_(0.25)
    x = torch.randn(1, 16, 4, 4)
    torch.testing.assert_close(norm(x), 2 * x)


def test_small_detections_are_dropped(tiny_config, make_batch):
    images, _ = make_batch(1)
    torch.manual_seed(0)
    cfg = tiny_config("MODEL.ROI_HEADS.SCORE_THRESH", 0.0)
    wide = build_model(cfg).eval()
    narrow = build_model(tiny_config("MODEL.ROI_HEADS.MIN_SIZE", 12.0)).eval()
    narrow.load_state_dict(wide.state_dict())
    for model, smallest in ((wide, 0.0), (narrow, 12.0)):
        boxes = model.detect(images)[0]["boxes"]
        sides = boxes[:, 2:] - boxes[:, :2]
        assert not len(boxes) or sides.min() >= smallest


def test_inclusive_anchors_straddle_by_their_last_pixel():
    # over 20 pixels: the last pixel of the second begins inside, that of the third at the border
    anchors = torch.tensor([[0.0, 0, 20, 20], [2, 2, 20.5, 9], [2, 2, 21, 9], [-0.5, 2, 9, 9]])
    assert box_ops.inside(anchors, (20, 20), 0).tolist() == [True, False, False, False]
    inclusive = box_ops.inside(anchors, (20, 20), 0, inclusive=True)
    assert inclusive.tolist() == [True, True, False, False]


def test_inclusive_boxes_are_resized_to_train_as_they_are_brought_back():
    boxes = torch.tensor([[3.0, 4, 30, 17], [10, 0, 61, 40], [5, 5, 6, 6.5]])
    resize = RandomShortestSize([100], 1000, "floor", inclusive=True)
    target = {"boxes": boxes, "labels": torch.ones(3, dtype=torch.int64)}
    image, after = DetectionTransform([resize])(torch.zeros(3, 45, 70, dtype=torch.uint8), target)
    net = (image.shape[1], image.shape[2])
    assert net == (100, 155)
    first = (after["boxes"][0] * torch.tensor([70 / 155, 0.45, 70 / 155, 0.45])).tolist()
    assert first[2] < 30  # the last pixel was not enlarged
    rules = OutputRules(inclusive=True)
    torch.testing.assert_close(rules.boxes(after["boxes"], net, (45, 70)), boxes)


def test_inclusive_maps_are_trained_on_the_frame_they_are_decoded_in():
    boxes = torch.tensor([[10.0, 20, 67, 77], [5, 5, 5.5, 30]])  # the second has no width left
    shorter = torch.tensor([[10.0, 20, 66, 76], [5, 5, 5, 29]])
    keypoints = torch.tensor([[[66.0, 76, 2], [10, 20, 2], [38, 48.5, 1]]]).repeat(2, 1, 1)
    target = {"matched": torch.tensor([0, 1]), "keypoints": keypoints}
    maps = torch.randn(2, 3, 8, 8)
    head = KeypointHead(nn.Identity(), nn.Identity(), inclusive=True)
    cells, valid = to_heatmap_cells(keypoints, shorter, 8)
    assert cells[0].tolist() == [63, 0, 4 * 8 + 4]
    assert valid.tolist() == [[True] * 3, [False] * 3]
    wanted = F.cross_entropy(maps.flatten(2)[valid], cells[valid])
    loss = head.loss(maps, [boxes], [target])["loss_keypoint"]
    torch.testing.assert_close(loss, wanted)


def test_inclusive_masks_are_trained_on_the_frame_they_are_pasted_into():
    masks = torch.zeros(1, 40, 40, dtype=torch.uint8)
    masks[0, 8:24, 8:24] = 1
    logits = torch.randn(1, 2, 16, 16)
    target = {"labels": torch.tensor([1]), "matched": torch.tensor([0]), "masks": masks}
    head = MaskHead(nn.Identity(), nn.Identity(), inclusive=True)
    loss = head.loss(logits, [torch.tensor([[8.0, 8, 25, 25]])], [target])["loss_mask"]
    everywhere = F.binary_cross_entropy_with_logits(logits[:, 1], torch.ones(1, 16, 16))
    torch.testing.assert_close(loss, everywhere)
