"""Tiles cover images, and tiles for training keep what they show."""

from itertools import pairwise

import pytest
import torch

from detlite.data.transforms.tiles import TrainingTiles, tile_windows
from tests.data.pixel_scenes import box_scene


@pytest.mark.parametrize("size", [(100, 100), (101, 333), (40, 250), (7, 9)])
@pytest.mark.parametrize("overlap", [0.0, 0.2, 0.5])
def test_as_few_tiles_as_possible_cover_the_image_and_overlap(size, overlap):
    covered = torch.zeros(size)
    windows = tile_windows(size, 50, overlap)
    for top, left, height, width in windows:
        assert (height, width) == (min(50, size[0]), min(50, size[1]))
        covered[top : top + height, left : left + width] += 1
    assert covered.min() >= 1
    step = int(50 * (1 - overlap))
    for axis, length in enumerate(size):
        starts = sorted({window[axis] for window in windows})
        assert all(second - first <= step for first, second in pairwise(starts))
        fewer = 50 + (len(starts) - 2) * step  # covered with one tile less
        assert length <= 50 or fewer < length


def scene(boxes, size=(60, 200)):
    region = torch.tensor([[0.0, 0.0, 5.0, 5.0]])
    return box_scene(boxes, size, channels=1, ignored_boxes=region, image_id=4)


def test_objects_at_seams_count_by_their_visible_area():
    image, target = scene([[10, 10, 30, 30], [50, 10, 70, 30], [55, 40, 75, 50], [90, 0, 99, 9]])
    tile, after = TrainingTiles(60, 0.0).cut(image, target, 0)
    assert tile.shape == (1, 60, 60)
    assert after["size"] == (60, 60)
    assert after["labels"].tolist() == [1, 2]
    assert after["boxes"].tolist() == [[10, 10, 30, 30], [50, 10, 60, 30]]
    assert after["ignored_boxes"].tolist() == [[0, 0, 5, 5], [55, 40, 60, 50]]
    tile[0, 40:50, 55:60] = 0  # the ignored region
    assert torch.equal(after["masks"].bitmaps(60, 60).amax(0) * 255, tile[0])


def test_every_object_is_complete_in_a_tile():
    boxes = [[x, 20, x + 9, 35] for x in range(0, 190, 10)]
    image, target = scene(boxes)
    tiles, complete = TrainingTiles(60, 0.4), set()
    for number in range(tiles.count((60, 200))):
        torch.manual_seed(number)
        _, after = tiles.cut(image, target, number)
        whole = after["boxes"][:, 2] - after["boxes"][:, 0] == 9
        complete |= {*after["labels"][whole].tolist()}
    assert complete == {*range(1, len(boxes) + 1)}


def test_objects_too_large_for_tiles_are_trained_in_the_whole_image():
    """Tiles show a fifth of the first box, and half of the second."""
    image, target = scene([[0, 0, 200, 60], [0, 10, 100, 20], [70, 40, 80, 50]])
    tiles = TrainingTiles(50, 0.0)
    assert tiles.exceeding(target["boxes"], (60, 200)).tolist() == [True, False, False]
    count = tiles.count((60, 200), target["boxes"])
    assert count == tiles.count((60, 200)) + 1 == tiles.count((60, 200), target["boxes"][1:]) + 1
    trained = [tiles.cut(image, target, number)[1]["labels"].tolist() for number in range(count)]
    assert trained[-1] == [1]
    assert {label for labels in trained[:-1] for label in labels} == {2, 3}
    whole, after = tiles.cut(image, target, count - 1)
    assert torch.equal(whole, image)
    assert after["size"] == (60, 200)
    assert len(after["masks"]) == 1
    assert after["ignored_boxes"].tolist() == [[0, 0, 5, 5], [0, 10, 100, 20], [70, 40, 80, 50]]


def test_tiles_are_a_function_of_the_seed_and_shift():
    image, target = scene([[80, 20, 100, 40]])
    tiles, boxes = TrainingTiles(80, 0.3), []
    for seed in (1, 1, 2, 3):
        torch.manual_seed(seed)
        boxes.append(tiles.cut(image, target, 1)[1]["boxes"].tolist())
    assert boxes[0] == boxes[1]
    assert len({str(one) for one in boxes}) > 1


def test_a_small_image_is_one_tile():
    image, target = scene([[3, 3, 9, 9]], (12, 20))
    tiles = TrainingTiles(64, 0.2)
    assert tiles.count((12, 20)) == 1
    tile, after = tiles.cut(image, target, 5)
    assert torch.equal(tile, image)
    assert after["boxes"].tolist() == [[3, 3, 9, 9]]
