"""Compare crop_masks with pycocotools' polygons and RoIAlign of bitmaps."""

import math
import time

import numpy as np
import pytest
import torch
from pycocotools import mask as rle_codec

from detlite.ops import crop_masks, roi_align
from detlite.structures.masks.packed import PackedMasks, pack


def polygons(instances):
    """Pack instances, each a list of polygons."""
    return pack([[np.array(ring, float) for ring in rings] for rings in instances], 0, 0)


def crop(masks, index, boxes, resolution, soft=False, device="cpu"):
    tensors = [x.to(device) for x in (*masks.tensors(), torch.as_tensor(index), boxes)]
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
    actual = crop(polygons(instances), index, boxes, resolution, device=device)
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
        for _ in range(50)
    ]
    check_polygons(instances, range(50), boxes_around(random, instances), resolution, device)


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
    boxes = torch.tensor([[2.0, 3, 16, 17]]).repeat(400, 1)
    instances = [[random.integers(0, 40, 2 * random.integers(3, 9)) / 2] for _ in range(400)]
    for pieces in instances[::2]:
        pieces[0] = np.concatenate([pieces[0], pieces[0][-2:], pieces[0][:2]])
    check_polygons(instances, range(400), boxes, 14, device)


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
        assert torch.equal(crop(polygons([[polygon]]), [0], boxes, 28, device=device), expected)
    assert time.process_time() - begin < 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, -1e300, 1e20])
def test_odd_corners_close_the_polygon(device, value):
    # The polygon stays closed: cells outside its other coordinates are empty.
    polygon = [4.0, 4, 20, 4, 20, 20, 4, 20]
    for place in range(8):
        odd = [*polygon[:place], value, *polygon[place + 1 :]]
        cells = crop(polygons([[odd]]), [0], torch.tensor([[0.0, 0, 28, 28]]), 28, device=device)
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
    cells = crop(polygons([[polygon]]), [0], boxes, 28, device=device)
    assert set(cells.unique().tolist()) <= {0.0, 1.0}
    mask = np.ones((40, 50), dtype=np.uint8)
    masks = PackedMasks.from_bitmaps(torch.from_numpy(mask)[None])
    for soft in (False, True):
        actual = crop(masks, [0], boxes, 3, soft, device)
        check_runs(actual, mask[None], [0], boxes, 3, soft, device)


def test_union_of_pieces(device):
    # Overlapping pieces do not cancel, and a piece without corners adds nothing.
    square = [2.0, 2, 10, 2, 10, 10, 2, 10]
    box = torch.tensor([[0.0, 0, 12, 12]])
    once = crop(polygons([[square]]), [0], box, 12, device=device)
    assert once.sum() == 64
    assert torch.equal(crop(polygons([[square, [], square]]), [0], box, 12, device=device), once)


def test_padding_and_empty_masks(device):
    square = [0.0, 0, 8, 0, 8, 8, 0, 8]
    masks = polygons([[], [square], []])
    boxes = torch.tensor([[0.0, 0, 8, 8]]).repeat(4, 1)
    actual = crop(masks, [-1, 0, 1, 2], boxes, 4, device=device)
    assert actual.sum(dim=(1, 2)).tolist() == [0, 0, 16, 0]
    assert crop(masks, torch.zeros(0).long(), torch.zeros(0, 4), 4).shape == (0, 4, 4)
    nothing = crop(polygons([]), [-1], boxes[:1], 4, device=device)
    assert not nothing.any()


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
    """Return a random bitmap: noise, stripes, full or empty, or an ellipse."""
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    kinds = [
        random.random((height, width)) < random.random(),
        np.tile(random.integers(0, 2, (1, width)), (height, 1)),
        np.full((height, width), random.integers(2)),
        (y / random.random()) ** 2 + (x / random.random()) ** 2 < 1,
    ]
    return kinds[random.integers(4)].astype(np.uint8)


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
        masks = np.stack([random_mask(random, height, width) for _ in range(4)])
        size, new_size = (height, width), (new_height, new_width)
        packed = PackedMasks.from_bitmaps(torch.from_numpy(masks))
        packed = packed.transformed(*flips, size, new_size)
        bitmaps = packed.bitmaps(*new_size).numpy()
        index = random.integers(0, 4, 30).tolist()
        boxes = boxes_with_ties(random, 30, new_height, new_width)
        actual = crop(packed, index, boxes, resolution, soft, device)
        assert actual.any()
        check_runs(actual, bitmaps, index, boxes, resolution, soft, device)


def test_boxes_larger_than_the_image(device):
    # Samples are many pixels apart or outside.
    mask = np.ones((30, 40), dtype=np.uint8)
    masks = PackedMasks.from_bitmaps(torch.from_numpy(mask)[None])
    boxes = torch.tensor([[-9e3, -9e3, 1e4, 1e4], [-1e9, 0, 1e9, 20], [5, -300, 35, 330]])
    for soft in (False, True):
        actual = crop(masks, [0, 0, 0], boxes, 3, soft, device)
        check_runs(actual, mask[None], [0, 0, 0], boxes, 3, soft, device)


def test_polygons_and_run_lengths_together(device):
    mask = np.zeros((20, 20), dtype=np.uint8)
    mask[4:12, 4:12] = 1
    square = [4.0, 4, 12, 4, 12, 12, 4, 12]
    runs = PackedMasks.from_bitmaps(torch.from_numpy(mask)[None])
    masks = PackedMasks.join([runs, polygons([[square]])])
    boxes = torch.tensor([[0.0, 0, 16, 16]]).repeat(2, 1)
    actual = crop(masks, [0, 1], boxes, 16, device=device)
    assert torch.equal(actual[0], torch.from_numpy(mask[:16, :16]).float())
    assert torch.equal(actual[1], actual[0])
