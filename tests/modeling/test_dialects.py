"""The numeric choices in which frameworks differ, each against its own framework or formula."""

from __future__ import annotations

import pytest
import torch
from torchvision.models.detection.anchor_utils import AnchorGenerator as TorchvisionAnchors
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import paste_masks_in_image, project_masks_on_boxes
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import roi_align

from detlite.data.transforms import get_size, resize_shortest
from detlite.modeling.anchors import AnchorGenerator
from detlite.modeling.mask_head import crop_masks
from detlite.modeling.pooler import POOLERS, Pooler
from detlite.modeling.rcnn import build_model
from detlite.structures import boxes as box_ops
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
