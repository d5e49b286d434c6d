"""Mosaics, compared with an oracle that decodes every pixel."""

import pytest
import torch

from detlite.data.transforms.mosaic import make_mosaic
from detlite.structures.masks.packed import PackedMasks
from tests.data.pixel_scenes import FILL, bitmaps_by_pixel, check, scene

SIZE = (44, 60)
# Equal sizes, different sizes, smaller than their quarters, sides of one pixel.
SIZES = [
    [(44, 60)] * 4,
    [(60, 44), (30, 90), (44, 60), (25, 26)],
    [(9, 12), (8, 70), (50, 7), (12, 12)],
    [(5, 60), (44, 5), (1, 1), (80, 90)],
]


def scenes_of(sizes, seed=0):
    """Return scenes of these sizes; an image with a side of up to 5 pixels is one object."""
    scenes = []
    for number, size in enumerate(sizes):
        if min(size) > 5:
            scenes.append(scene(number, size, 10 * seed + number))
            continue
        bitmap = torch.ones(1, *size, dtype=torch.uint8)
        image = torch.zeros(3, *size, dtype=torch.uint8)
        image[0], image[1] = torch.arange(size[1]), torch.arange(size[0])[:, None]
        image[2] = number
        target = {
            "boxes": torch.tensor([[0.0, 0, size[1], size[0]]]), "image_id": number, "size": size,
            "labels": torch.tensor([1 + 10 * number]), "masks": PackedMasks.from_bitmaps(bitmap),
            "keypoints": torch.tensor([[[0.5, 0.5, 2.0]] * 5]),
        }  # fmt: skip
        scenes.append((image, target, bitmap))
    return scenes


def shifts(image, count):
    """Decode the shift (x, y) of each image; None if it is not visible."""
    result = []
    for number in range(count):
        rows, columns = (image[2] == number).nonzero(as_tuple=True)
        if len(rows) == 0:
            result.append(None)
            continue
        x = columns - image[0, rows, columns].long()
        y = rows - image[1, rows, columns].long()
        assert len(x.unique()) == len(y.unique()) == 1
        result.append((int(x[0]), int(y[0])))
    return result


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("seed", range(4))
def test_boxes_masks_and_keypoints_equal_the_oracle(sizes, seed):
    scenes = scenes_of(sizes, seed)
    before = [target["boxes"].clone() for _, target, _ in scenes]
    torch.manual_seed(seed)
    image, target = make_mosaic([one[:2] for one in scenes], SIZE, FILL)
    assert image.shape == (3, *SIZE)
    assert image.is_contiguous()
    check(image, target, bitmaps_by_pixel(image, scenes))
    moved = shifts(image, 4)
    for label, points in zip(target["labels"].tolist(), target["keypoints"], strict=True):
        number, index = label // 10, label % 10 - 1
        old = scenes[number][1]["keypoints"][index]
        expected = old[:, :2] + torch.tensor(moved[number])
        assert torch.allclose(points[:, :2], expected)
        for (x, y), now, was in zip(
            expected.tolist(), points[:, 2].tolist(), old[:, 2].tolist(), strict=True
        ):
            shown = (
                0 <= x < SIZE[1] and 0 <= y < SIZE[0] and int(image[2, int(y), int(x)]) == number
            )
            assert now == was * shown
    assert (target["image_id"], target["size"]) == (0, sizes[0])
    assert all(torch.equal(old, one[1]["boxes"]) for old, one in zip(before, scenes, strict=True))


def test_four_quarters_meet_at_a_random_center():
    """The center covers the middle half of each side; quarters show any part of their images."""
    names = ("boxes", "labels")
    parts = [
        (image, {name: target[name] for name in names})
        for image, target, _ in scenes_of([(90, 120)] * 4)
    ]
    torch.manual_seed(0)
    centers, corners = set(), set()
    for _ in range(300):
        image = make_mosaic(parts, SIZE, FILL)[0]
        row, column = int((image[2, :, 0] == 0).sum()), int((image[2, 0] == 0).sum())
        below, right = torch.arange(SIZE[0])[:, None] >= row, torch.arange(SIZE[1]) >= column
        assert torch.equal(image[2].long(), 2 * below + right)
        centers.add((row, column))
        corners.add(tuple(image[:2, 0, 0].tolist()))
    rows, columns = (set(side) for side in zip(*centers, strict=True))
    assert rows == set(range(11, 34))
    assert (min(columns), max(columns)) == (15, 45)
    left, top = (set(side) for side in zip(*corners, strict=True))
    assert min(left) < 10
    assert max(left) > 70
    assert min(top) < 5
    assert max(top) > 50


def test_small_images_touch_the_center():
    torch.manual_seed(3)
    image, _ = make_mosaic([one[:2] for one in scenes_of([(9, 12)] * 4)], SIZE, FILL)
    rows, columns = (image[2] < 4).nonzero(as_tuple=True)
    assert len(rows) == 4 * 9 * 12
    top, left = int(rows.min()), int(columns.min())
    block = image[2, top : top + 18, left : left + 24]
    expected = torch.tensor([[0, 1], [2, 3]]).repeat_interleave(9, 0).repeat_interleave(12, 1)
    assert torch.equal(block.long(), expected)
    padding = image[:, image[2] > 4].T
    assert (padding == torch.tensor(FILL)).all()


def test_padding_of_float_images():
    scenes = scenes_of([(9, 12)] * 4)
    parts = [(image.float() / 255, target) for image, target, _ in scenes]
    torch.manual_seed(3)
    image, _ = make_mosaic(parts, SIZE, FILL)
    torch.manual_seed(3)
    whole, _ = make_mosaic([one[:2] for one in scenes], SIZE, FILL)
    assert image.dtype == torch.float32
    assert torch.allclose(image, whole.float() / 255)


def test_targets_without_masks_and_without_objects():
    scenes = scenes_of([(44, 60)] * 4)
    names = ("boxes", "labels")
    torch.manual_seed(0)
    _, whole = make_mosaic([(image, target) for image, target, _ in scenes], SIZE, FILL)
    torch.manual_seed(0)
    boxes_alone = [(image, {name: target[name] for name in names}) for image, target, _ in scenes]
    _, result = make_mosaic(boxes_alone, SIZE, FILL)
    assert result.keys() == set(names)
    # A cut mask may be smaller than its cut box.
    assert set(whole["labels"].tolist()) <= set(result["labels"].tolist())

    nothing = {
        "boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64),
        "masks": PackedMasks.from_segmentations([], 44, 60, False),
        "keypoints": torch.zeros(0, 5, 3),
    }  # fmt: skip
    _, target = make_mosaic([(one[0], nothing) for one in scenes], SIZE, FILL)
    assert target["boxes"].shape == (0, 4)
    assert target["keypoints"].shape == (0, 5, 3)
    assert len(target["masks"]) == 0
    torch.manual_seed(0)
    _, target = make_mosaic(
        [(scenes[0][0], nothing), scenes[1][:2], (scenes[2][0], nothing), scenes[3][:2]], SIZE, FILL
    )
    assert {label // 10 for label in target["labels"].tolist()} == {1, 3}
    assert len(target["masks"]) == len(target["labels"])


def test_proposals_move_with_their_images():
    scenes = scenes_of([(44, 60)] * 4)
    for _, target, _ in scenes:
        target["proposals"] = target["boxes"].clone()
        del target["masks"]  # then boxes are cut like proposals
    torch.manual_seed(0)
    _, target = make_mosaic([one[:2] for one in scenes], SIZE, FILL)
    assert torch.equal(target["proposals"], target["boxes"])


@pytest.mark.parametrize("size", [(1, 60), (44, 1), (1, 1), (2, 2)])
def test_mosaics_of_a_few_pixels(size):
    scenes = scenes_of([(44, 60)] * 4)
    for seed in range(8):
        torch.manual_seed(seed)
        image, target = make_mosaic([one[:2] for one in scenes], size, FILL)
        assert image.shape == (3, *size)
        check(image, target, bitmaps_by_pixel(image, scenes))
        assert target["image_id"] == 0
