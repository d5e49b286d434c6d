"""Mosaics, compared with an oracle that decodes every pixel."""

import numpy as np
import pytest
import torch

from detlite.data.transforms.detection_transform import DetectionTransform
from detlite.data.transforms.mosaic import make_mosaic
from detlite.structures.masks.packed import PackedMasks
from tests.data.pixel_scenes import FILL, bitmaps_by_pixel, check, scene

SIZE = (44, 60)
TO_SIDES = np.array([[-1, 0], [0, -1], [1, 0], [0, 1]])  # for boxes xyxy
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


def test_uncut_polygons_stay_polygons():
    scenes = scenes_of([(44, 60)] * 4)
    torch.manual_seed(1)
    image, target = make_mosaic([one[:2] for one in scenes], SIZE, FILL)
    moved = shifts(image, 4)
    kinds = set()
    for place, label in enumerate(target["labels"].tolist()):
        old = scenes[label // 10][1]
        own = old["masks"].select(torch.tensor([label % 10 - 1]))
        now = target["masks"].select(torch.tensor([place]))
        if own.frames.any():
            assert now.frames.any()
            continue
        shift = torch.tensor(moved[label // 10], dtype=torch.float64)
        box = old["boxes"][label % 10 - 1] + shift.repeat(2)
        whole = torch.equal(box.float(), target["boxes"][place])
        assert whole != bool(now.frames.any())
        kinds.add(whole)
        if whole:
            assert torch.equal(now.values.view(-1, 2), own.values.view(-1, 2) + shift)
    assert kinds == {True, False}


def box_around(bitmap):
    """Return the box xyxy of a bitmap."""
    rows, columns = (np.flatnonzero(bitmap.any(axis)) for axis in (1, 0))
    return np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])


def edges(bitmap):
    """Return the pixels with a neighbor of another value."""
    height, width = bitmap.shape
    padded = np.pad(bitmap, 1, mode="edge")
    near = [padded[y : y + height, x : x + width] for y in range(3) for x in range(3)]
    return np.any([one != bitmap for one in near], axis=0)


def test_polygons_are_cut_at_the_border_of_their_image():
    """The oracle pastes bitmaps of whole images with numpy.

    pycocotools rounds corners to fifths of a pixel, so a cut object may differ in some pixels of
    its outline.
    """
    rng = np.random.default_rng(0)
    cut = differing = pixels = 0
    for trial in range(20):
        parts, drawn = [], []
        for number in range(4):
            image = scene(number, (50, 66), trial)[0]
            angles = np.arange(7) + rng.uniform(0, 0.7, (6, 7))
            away = rng.uniform(3, 22, (6, 7, 1)) * np.stack([np.cos(angles), np.sin(angles)], -1)
            corners = rng.uniform(10, (56, 40), (6, 1, 2)) + away * 6 / 7
            corners = torch.from_numpy(corners.clip(0, (66, 50)))
            rings = [[ring] for ring in corners.flatten(1).tolist()]
            masks = PackedMasks.from_segmentations(rings, 50, 66, False)
            boxes = torch.cat([corners.amin(1), corners.amax(1)], 1).float()
            target = {"boxes": boxes, "labels": torch.arange(6) + 10 * number, "masks": masks}
            parts.append((image, target))
            drawn.append(masks.bitmaps(50, 66).numpy())
        image, target = make_mosaic(parts, SIZE, FILL)
        moved = shifts(image, 4)
        masks = dict(zip(target["labels"].tolist(), target["masks"].bitmaps(*SIZE), strict=True))
        boxes = dict(zip(target["labels"].tolist(), target["boxes"].numpy(), strict=True))
        for label in (number * 10 + place for number in range(4) for place in range(6)):
            number, place = divmod(label, 10)
            x, y = moved[number]
            expected = np.zeros(SIZE, np.uint8)
            for row, column in (image[2] == number).nonzero().tolist():
                expected[row, column] = drawn[number][place, row - y, column - x]
            if label not in masks:
                assert not expected.any() or (box_around(expected) @ TO_SIDES).min() < 2
                continue
            bitmap = masks[label].numpy()
            assert not bitmap[(image[2] != number).numpy()].any()
            off = bitmap != expected
            assert not (off & ~edges(expected) & ~edges(bitmap)).any()
            assert np.abs(boxes[label] - box_around(bitmap)).max() <= 1
            differing, pixels = differing + off.sum(), pixels + expected.sum()
            moved_box = parts[number][1]["boxes"][place] + torch.tensor([x, y, x, y])
            if torch.equal(moved_box, torch.from_numpy(boxes[label])):
                assert not off.any()
            else:
                cut += 1
    assert cut > 100
    assert differing < 0.005 * pixels


def test_objects_below_a_pixel_are_dropped():
    """Objects at all positions are kept exactly if at least a pixel is visible."""
    side = 12
    boxes = torch.tensor([[x, 0.0, x + 4.5, side] for x in np.arange(0, side - 4.5, 0.25).tolist()])
    target = {"boxes": boxes, "labels": torch.arange(len(boxes))}
    wide, other = torch.full((2, 3, side, side), 9, dtype=torch.uint8)
    wide[0] = torch.arange(side)
    other[2] = 8
    none = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
    dropped = 0
    for seed in range(20):
        torch.manual_seed(seed)
        parts = [(wide, target), *[(other, none)] * 3]
        image, result = make_mosaic(parts, (side, side), FILL)
        first = int(image[0, 0, 0])
        end = first + int((image[2, 0] == 9).sum())
        shown = boxes[:, 2].clamp(max=end) - boxes[:, 0].clamp(min=first)
        assert result["labels"].tolist() == (shown >= 1).nonzero()[:, 0].tolist()
        dropped += int((shown < 1).sum())
    assert dropped > 50


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


def test_flipped_parts():
    """Run lengths store their flips, so they are decoded in the mosaic."""
    scenes = scenes_of([(44, 60)] * 4)
    flips = DetectionTransform(flip=(1.0, 1.0))
    torch.manual_seed(0)
    image, target = make_mosaic([flips(*one[:2]) for one in scenes], SIZE, FILL)
    assert image[0, 0, 0] > image[0, 0, 1]
    assert image[1, 0, 0] > image[1, 1, 0]
    check(image, target, bitmaps_by_pixel(image, scenes))
