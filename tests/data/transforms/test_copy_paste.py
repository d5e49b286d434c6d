"""Pasted objects, compared with the pixels of both images."""

import numpy as np
import pytest
import torch

from detlite.data.transforms.copy_paste import choose_objects, paste_objects
from detlite.structures.masks.packed import PackedMasks
from tests.data.pixel_scenes import check, scene


def placed(pixels, size):
    """Return an image or bitmaps in the upper left corner of another size."""
    height, width = size
    result = pixels.new_zeros(len(pixels), height, width)
    part = pixels[:, :height, :width]
    result[:, : part.shape[1], : part.shape[2]] = part
    return result


@pytest.mark.parametrize("sizes", [((40, 50), (40, 50)), ((60, 30), (25, 70)), ((20, 20), (64, 9))])
@pytest.mark.parametrize("seed", range(4))
def test_pasted_objects_cover_other_objects(sizes, seed):
    below, above = scene(0, sizes[0], seed), scene(1, sizes[1], seed + 100)
    torch.manual_seed(seed)
    chosen = choose_objects(above[1])
    inputs = [one.clone() for one in (below[0], below[1]["boxes"], below[1]["keypoints"])]
    image, target = paste_objects(below[0], below[1], above[0], chosen)
    added = placed(above[2][torch.isin(above[1]["labels"], chosen["labels"])], sizes[0])
    pasted = added.bool().any(0)
    assert torch.equal(image, torch.where(pasted, placed(above[0], sizes[0]), below[0]))
    labels = torch.cat([below[1]["labels"], chosen["labels"]])
    check(image, target, labels, torch.cat([below[2] * ~pasted, added]))
    # Covered keypoints become hidden.
    for label, points in zip(target["labels"].tolist(), target["keypoints"], strict=True):
        if label > 10:
            continue
        old = below[1]["keypoints"][label - 1]
        assert torch.equal(points[:, :2], old[:, :2])
        for (x, y, visibility), before in zip(points.tolist(), old[:, 2].tolist(), strict=True):
            covered = bool(pasted[int(y), int(x)])
            assert visibility == (min(before, 1) if covered else before)
    # The inputs are not changed.
    assert all(map(torch.equal, inputs, (below[0], below[1]["boxes"], below[1]["keypoints"])))
    assert (target["image_id"], target["size"]) == (0, sizes[0])


def test_choose_half_of_the_objects():
    target = scene(0, (60, 70), 0)[1]
    torch.manual_seed(0)
    chosen = [choose_objects(target) for _ in range(60)]
    assert 0.4 < np.mean([len(one["labels"]) for one in chosen]) / 8 < 0.6
    for one in chosen:
        assert len(one["labels"]) == len(one["boxes"]) == len(one["masks"]) == len(one["keypoints"])
    image, _ = paste_objects(*scene(0, (60, 70), 0)[:2], *scene(1, (9, 9), 1)[:2])
    assert image.shape == (3, 60, 70)


def test_objects_of_a_smaller_image_end_at_its_border():
    """Polygons may exceed their image, and ignored regions of the source are not pasted."""
    image, target, _ = scene(0, (40, 40), 0)
    target["ignored_boxes"] = torch.tensor([[1.0, 2, 3, 4]])
    source = torch.full((3, 20, 20), 9, dtype=torch.uint8)
    polygon = [[5.0, 5, 30, 5, 30, 30, 5, 30]]
    pasted = {
        "boxes": torch.tensor([[5.0, 5, 20, 20]]), "labels": torch.tensor([77]),
        "masks": PackedMasks.from_segmentations([polygon], 20, 20, False),
        "keypoints": torch.zeros(1, 5, 3), "ignored_boxes": torch.tensor([[0.0, 0, 9, 9]]),
    }  # fmt: skip
    after, joined = paste_objects(image, target, source, pasted)
    bitmap = joined["masks"].bitmaps(40, 40)[-1].bool()
    assert joined["boxes"][-1].tolist() == [5, 5, 20, 20]
    expected = torch.zeros(40, 40, dtype=torch.bool)
    expected[5:20, 5:20] = True
    assert torch.equal(bitmap, expected)
    assert torch.equal((after == 9).all(0), expected)
    assert joined["ignored_boxes"].tolist() == [[1, 2, 3, 4]]
