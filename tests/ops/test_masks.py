"""Compare crop_masks with pycocotools' polygons and RoIAlign of bitmaps."""

import math
import time

import numpy as np
import pytest
import torch
from pycocotools import mask as rle_codec

from detlite.ops import crop_masks, roi_align
from detlite.ops.dispatch import use_fallback_ops

NO_FRAME = [0] * 6


def pack(instances, frames=None):
    """Return the four tensors of PackedMasks from a list of pieces for each instance."""
    pieces = [np.asarray(piece, dtype=np.float64) for pieces in instances for piece in pieces]
    counts = [len(pieces) for pieces in instances]
    return (
        torch.from_numpy(np.concatenate([np.zeros(0), *pieces])),
        torch.tensor([0, *np.cumsum([len(piece) for piece in pieces])], dtype=torch.int64),
        torch.tensor([0, *np.cumsum(counts)], dtype=torch.int64),
        torch.tensor(frames or [NO_FRAME] * len(instances), dtype=torch.int64).view(-1, 6),
    )


def crop(masks, index, boxes, resolution, soft=False, device="cpu"):
    tensors = [x.to(device) for x in (*masks, torch.as_tensor(index), boxes)]
    return crop_masks(*tensors, resolution, soft).cpu()


def rasterize(polygons, box, resolution):
    """Rasterize like detectron2's rasterize_polygons_within_box."""
    width, height = box[2] - box[0], box[3] - box[1]
    ratios = [
        np.float32(resolution) / side if side >= np.float32(0.1) else resolution / 0.1
        for side in (width, height)
    ]
    moved = [np.array(polygon, dtype=np.float64) for polygon in polygons]
    for polygon in moved:
        polygon[0::2] = (polygon[0::2] - box[0]) * ratios[0]
        polygon[1::2] = (polygon[1::2] - box[1]) * ratios[1]
    rles = rle_codec.frPyObjects([p.tolist() for p in moved], resolution, resolution)
    return rle_codec.decode(rle_codec.merge(rles))


def check_polygons(instances, index, boxes, resolution, device):
    actual = crop(pack(instances), index, boxes, resolution, device=device)
    for i, box, cells in zip(index, boxes.numpy(), actual.numpy(), strict=True):
        expected = rasterize(instances[i], box, resolution)
        np.testing.assert_array_equal(cells, expected, err_msg=f"{instances[i]} in {box}")


def blob(random, center, radius, corners):
    """Return a polygon around a center with two digits, as annotators draw them."""
    angles = np.sort(random.uniform(0, 2 * np.pi, corners))
    radii = radius * random.uniform(0.4, 1, corners)
    xy = center + radii[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return xy.round(2).ravel()


def boxes_around(random, instances):
    """Return a box near the hull of each instance."""
    hulls = [np.concatenate(pieces).reshape(-1, 2) for pieces in instances]
    hulls = np.array([np.concatenate([hull.min(0), hull.max(0)]) for hull in hulls])
    sides = np.tile(hulls[:, 2:] - hulls[:, :2], 2)
    return torch.from_numpy(hulls + sides * random.normal(0, 0.1, hulls.shape)).float()


@pytest.mark.parametrize("resolution", [1, 7, 28, 64, 65])
def test_polygons_equal_detectron2(device, resolution):
    random = np.random.default_rng(resolution)
    instances = [
        [
            blob(random, random.uniform(0, 300, 2), random.uniform(2, 90), random.integers(3, 40))
            for _ in range(random.integers(1, 4))
        ]
        for _ in range(100)
    ]
    check_polygons(instances, range(100), boxes_around(random, instances), resolution, device)


@pytest.mark.parametrize("spread", [3, 30, pytest.param(400, marks=pytest.mark.slow)])
def test_any_corners_anywhere(device, spread):
    # Self-intersecting polygons; distant and reversed boxes.
    random = np.random.default_rng(spread)
    instances = [[random.normal(0, spread, 2 * random.integers(3, 12))] for _ in range(150)]
    boxes = torch.from_numpy(random.normal(0, 30, (150, 4))).float()
    boxes[:100, 2:] = boxes[:100, :2] + boxes[:100, 2:].abs()
    check_polygons(instances, range(150), boxes, 28, device)


def test_corners_on_the_grid(device):
    # Whole and half cells, repeated corners, vertical and zero-length edges.
    random = np.random.default_rng(0)
    boxes = torch.tensor([[2.0, 3, 16, 17]]).repeat(1000, 1)
    instances = [[random.integers(0, 40, 2 * random.integers(3, 9)) / 2] for _ in range(1000)]
    for pieces in instances[::2]:
        pieces[0] = np.concatenate([pieces[0], pieces[0][-2:], pieces[0][:2]])
    check_polygons(instances, range(1000), boxes, 14, device)


@pytest.mark.parametrize("side", [0.0, 0.05, 0.1, 0.1001, -3.0])
def test_tiny_boxes(device, side):
    polygon = [3.0, 3, 3.2, 3.01, 3.1, 3.2]
    boxes = torch.tensor([[3.0, 3, 3 + side, 3 + side], [3, 3, 4, 3 + side]])
    check_polygons([[polygon]], [0, 0], boxes, 28, device)


@pytest.mark.parametrize("count", [30, pytest.param(200, marks=pytest.mark.slow)])
def test_long_edges_are_exact(device, count):
    # Thousands of cells beyond the box, which pycocotools walks point by point.
    random = np.random.default_rng(0)
    instances = [[random.normal(0, 10.0 ** random.uniform(1, 4.3), 8)] for _ in range(count)]
    boxes = torch.tensor([[-1.0, -1, 1, 1]]).repeat(count, 1)
    check_polygons(instances, range(count), boxes, 28, device)


def test_far_corners_are_fast(device):
    # A rectangle over the left half of the box, with its other corners up to 1e300 pixels away.
    boxes = torch.tensor([[0.0, 0, 28, 28]])
    expected = torch.zeros(1, 28, 28)
    expected[..., :14] = 1
    begin = time.process_time()
    for far in (1e3, 1e6, 1e7, 1e15, 1e300, math.inf):
        polygon = [-far, -far, 14, -far, 14, far, -far, far]
        assert torch.equal(crop(pack([[polygon]]), [0], boxes, 28, device=device), expected)
    assert time.process_time() - begin < 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, -1e300, 1e20])
def test_odd_corners_close_the_polygon(device, value):
    # The polygon stays closed: cells outside its other coordinates are empty.
    polygon = [4.0, 4, 20, 4, 20, 20, 4, 20]
    for place in range(8):
        odd = [*polygon[:place], value, *polygon[place + 1 :]]
        cells = crop(pack([[odd]]), [0], torch.tensor([[0.0, 0, 28, 28]]), 28, device=device)
        if place % 2 == 0:  # an odd x: all rows stay between 4 and 20
            assert not cells[:, :4].any()
            assert not cells[:, 20:].any()
        else:
            assert not cells[..., :4].any()
            assert not cells[..., 20:].any()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38, -3e38])
@pytest.mark.parametrize("column", range(4))
def test_invalid_boxes(device, value, column):
    boxes = torch.tensor([[2.0, 3, 20, 30]])
    boxes[0, column] = value
    polygon = [3.0, 4, 15, 5, 9, 22]
    cells = crop(pack([[polygon]]), [0], boxes, 28, device=device)
    assert set(cells.unique().tolist()) <= {0.0, 1.0}
    mask = np.ones((40, 50), dtype=np.uint8)
    masks = pack([[run_boundaries(mask)]], [[40, 50, 0, 0, 40, 50]])
    for soft in (False, True):
        actual = crop(masks, [0], boxes, 7, soft, device)
        check_runs(actual, mask[None], [0], boxes, 7, soft, device)


def test_union_of_pieces(device):
    # Overlapping pieces do not cancel, and a piece without corners adds nothing.
    square = [2.0, 2, 10, 2, 10, 10, 2, 10]
    box = torch.tensor([[0.0, 0, 12, 12]])
    once = crop(pack([[square]]), [0], box, 12, device=device)
    assert once.sum() == 64
    assert torch.equal(crop(pack([[square, [], square]]), [0], box, 12, device=device), once)


def test_padding_and_empty_masks(device):
    square = [0.0, 0, 8, 0, 8, 8, 0, 8]
    masks = pack([[], [square], []])
    boxes = torch.tensor([[0.0, 0, 8, 8]]).repeat(4, 1)
    actual = crop(masks, [-1, 0, 1, 2], boxes, 4, device=device)
    assert actual.sum(dim=(1, 2)).tolist() == [0, 0, 16, 0]
    assert crop(masks, torch.zeros(0).long(), torch.zeros(0, 4), 4).shape == (0, 4, 4)
    nothing = crop(pack([]), [-1], boxes[:1], 4, device=device)
    assert not nothing.any()


def run_boundaries(mask):
    """Return the run boundaries of a bitmap [H, W]."""
    flat = np.concatenate([[0], mask.T.ravel()])
    return np.flatnonzero(np.diff(flat.astype(np.int8)))


def resize(mask, frame):
    """Flip and resize a bitmap to the network's input, to the nearest pixel."""
    height, width, flip_x, flip_y, new_height, new_width = frame
    columns = (2 * np.arange(new_width) + 1) * width // (2 * new_width)
    rows = (2 * np.arange(new_height) + 1) * height // (2 * new_height)
    if flip_x:
        mask = mask[:, ::-1]
    if flip_y:
        mask = mask[::-1]
    return mask[rows][:, columns]


def check_runs(actual, bitmaps, index, boxes, resolution, soft, device):
    """Check crops against the CPU's RoIAlign of the bitmaps [G, H, W].

    They are equal to the last bit on a CPU. A GPU fuses multiplications and additions, which moves
    a value by one rounding, and a cell of a hard mask that lies at one half to the other side.
    """
    rois = torch.cat([torch.tensor(index, dtype=torch.float32)[:, None], boxes], dim=1)
    maps = torch.from_numpy(np.ascontiguousarray(bitmaps))[:, None].float()
    expected = roi_align(maps, rois, (resolution, resolution), 1.0, 0, aligned=not soft)[:, 0]
    exact = expected if soft else (expected >= 0.5).float()
    if device == "cuda":
        undecided = torch.zeros(()).bool() if soft else (expected - 0.5).abs() < 1e-5
        torch.testing.assert_close(torch.where(undecided, exact, actual), exact, rtol=0, atol=1e-5)
    else:
        assert torch.equal(actual, exact)


def random_mask(random, height, width):
    """Return a random bitmap: blobs, noise, stripes, full or empty."""
    kind = random.integers(6)
    if kind == 0:
        return (random.random((height, width)) < random.random()).astype(np.uint8)
    if kind == 1:
        return np.full((height, width), random.integers(2), dtype=np.uint8)
    if kind == 2:
        return np.tile(random.integers(0, 2, (1, width)), (height, 1)).astype(np.uint8)
    y, x = np.mgrid[:height, :width]
    mask = np.zeros((height, width), dtype=bool)
    for _ in range(random.integers(1, 4)):
        cy, cx = random.uniform(0, height), random.uniform(0, width)
        ry, rx = random.uniform(1, height), random.uniform(1, width)
        mask |= ((y - cy) / ry) ** 2 + ((x - cx) / rx) ** 2 < 1
    return mask.astype(np.uint8)


def boxes_with_ties(random, count, height, width):
    low = random.uniform(-0.2, 1, (count, 2)) * [width, height]
    sides = random.uniform(0, 1.2, (count, 2)) * [width, height]
    boxes = np.concatenate([low, low + sides], axis=1)
    boxes[::3] = boxes[::3].round()  # halves of cells are where ties are
    boxes[1::3] = (boxes[1::3] * 2).round() / 2
    return torch.from_numpy(boxes).float()


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("flips", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("resolution", [pytest.param(5, marks=pytest.mark.slow), 28])
def test_run_lengths_equal_roi_align_of_bitmaps(device, soft, flips, resolution):
    random = np.random.default_rng([*flips, resolution])
    for _ in range(8):
        height, width, new_height, new_width = (int(x) for x in random.integers(1, 150, 4))
        frame = [height, width, *flips, new_height, new_width]
        masks = [random_mask(random, height, width) for _ in range(4)]
        bitmaps = np.stack([resize(mask, frame) for mask in masks])
        index = random.integers(0, 4, 30).tolist()
        boxes = boxes_with_ties(random, 30, new_height, new_width)
        packed = pack([[run_boundaries(mask)] for mask in masks], [frame] * 4)
        actual = crop(packed, index, boxes, resolution, soft, device)
        assert actual.any()
        check_runs(actual, bitmaps, index, boxes, resolution, soft, device)


def test_boxes_larger_than_the_image(device):
    # Samples are many pixels apart or outside.
    mask = np.ones((30, 40), dtype=np.uint8)
    masks = pack([[run_boundaries(mask)]], [[30, 40, 0, 0, 30, 40]])
    boxes = torch.tensor([[-9e3, -9e3, 1e4, 1e4], [-1e9, 0, 1e9, 20], [5, -300, 35, 330]])
    for soft in (False, True):
        actual = crop(masks, [0, 0, 0], boxes, 7, soft, device)
        check_runs(actual, mask[None], [0, 0, 0], boxes, 7, soft, device)


def test_polygons_and_run_lengths_together(device):
    mask = np.zeros((20, 20), dtype=np.uint8)
    mask[4:12, 4:12] = 1
    square = [4.0, 4, 12, 4, 12, 12, 4, 12]
    masks = pack([[run_boundaries(mask)], [square]], [[20, 20, 0, 0, 20, 20], NO_FRAME])
    boxes = torch.tensor([[0.0, 0, 16, 16]]).repeat(2, 1)
    actual = crop(masks, [0, 1], boxes, 16, device=device)
    assert torch.equal(actual[0], torch.from_numpy(mask[:16, :16]).float())
    assert torch.equal(actual[1], actual[0])


def arguments(**change):
    square = [4.0, 4, 12, 4, 12, 12, 4, 12]
    mask = np.eye(20, dtype=np.uint8)
    frames = [NO_FRAME, [20, 20, 0, 1, 40, 30]]
    names = ("values", "pieces", "instances", "frames")
    good = dict(zip(names, pack([[square], [run_boundaries(mask)]], frames), strict=True))
    good["index"] = torch.tensor([0, 1, -1])
    good["boxes"] = torch.tensor([[0.0, 0, 16, 16]]).repeat(3, 1)
    return {**good, "resolution": 14, "soft": False, **change}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": torch.zeros(2, 2).double()}, r"values must have shape \[V\], got \[2, 2\]"),
        ({"values": torch.zeros(9)}, "values must be float64, got float32"),
        ({"pieces": torch.zeros(1, 2).long()}, "pieces must have (one dimension|shape)"),
        ({"pieces": torch.zeros(3)}, "pieces must be int64, got float32"),
        ({"instances": torch.zeros(1, 2).long()}, r"instances must have .*\[1, 2\]"),
        ({"instances": torch.zeros(3).int()}, "instances must be int64, got int32"),
        ({"frames": torch.zeros(3, 6).long()}, r"frames must have shape \[2, 6\]"),
        ({"frames": torch.zeros(2, 6)}, "frames must be int64"),
        ({"index": torch.zeros(3, 1).long()}, "index must have (one dimension|shape)"),
        ({"index": torch.zeros(3)}, "index must be int64"),
        ({"boxes": torch.zeros(2, 4)}, r"boxes must have shape \[3, 4\], "),
        ({"boxes": torch.zeros(3, 4).long()}, "boxes must be floating point, got int64"),
        ({"resolution": 0}, "resolution must be from 1 to 256, got 0"),
        ({"resolution": 257}, "resolution must be from 1 to 256, got 257"),
    ],
)
def test_invalid_arguments_are_named(device, change, message):
    good = arguments(**change)
    moved = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in good.items()}
    with pytest.raises(RuntimeError, match=message):
        crop_masks(**moved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pieces": torch.tensor([0, 8, 10**9])}, r"pieces must increase .*, got 1000000000 at"),
        ({"pieces": torch.tensor([0, 8, 6])}, "pieces must increase"),
        ({"pieces": torch.tensor([-8, 8, 8])}, "pieces must increase.* got -8 at place 0"),
        ({"pieces": torch.tensor([0, 7, 8])}, "piece 0 must have an x and a y"),
        ({"instances": torch.tensor([0, 1, 3])}, "instances must increase from 0 to the 2 pieces"),
        ({"instances": torch.tensor([0, 0, 2])}, "instance 1 is run lengths and must have one"),
        ({"frames": torch.tensor([NO_FRAME, [20, 0, 0, 0, 20, 20]])}, r"frames\[1\] must have"),
        ({"frames": torch.tensor([NO_FRAME, [-2, 9, 0, 0, 20, 20]])}, r"frames\[1\] must have"),
        ({"frames": torch.tensor([NO_FRAME, [9, 9, 0, 0, 20, 2**16]])}, r"frames\[1\] must have"),
        ({"index": torch.tensor([0, 1, 2])}, r"index\[2\] is 2, but there are 2 instances"),
        ({"index": torch.tensor([0, -2, 0])}, r"index\[1\] is -2"),
        ({"soft": True}, "instance 0 is polygons, and soft masks need run lengths"),
    ],
)
def test_invalid_contents_are_named(change, message):
    with pytest.raises(RuntimeError, match=message):
        crop_masks(**arguments(**change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index": torch.tensor([0, 1, 2])}, r"index is \[2\], but there are 2 instances"),
        ({"index": torch.tensor([0, -2, 0])}, r"index is \[-2\], but there are 2 instances"),
        ({"soft": True}, "instance 0 is polygons, and soft masks need run lengths"),
    ],
)
def test_masks_that_cannot_be_cropped_without_kernels(change, message):
    with use_fallback_ops(), pytest.raises(RuntimeError, match=message):
        crop_masks(**arguments(**change))


def test_boxes_may_require_a_gradient():
    good = arguments()
    boxes = good["boxes"].clone().requires_grad_()
    assert not crop_masks(**{**good, "boxes": boxes}).requires_grad
