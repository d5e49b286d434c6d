"""What a data set looks like, in numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from detlite.apps.autoconfig import measure
from detlite.data.errors import DataError


def test_numbers_of_a_set(make_coco_dataset):
    found = measure(*make_coco_dataset(ratio=4.0))
    assert found.sizes.shape == (6, 2)
    assert found.sizes[0].tolist() == [96, 128]
    assert len(found.boxes) == len(found.owners) == found.with_masks == 18
    assert found.per_image.tolist() == [3] * 6
    assert found.sides.min() >= 16
    assert found.sides.max() <= 40
    assert found.ratios == pytest.approx(np.full(18, 4.0))
    assert [row[0] for row in found.categories] == ["cat", "dog"]
    assert sum(row[1] for row in found.categories) == 18
    assert found.unsound == found.unsound_masks == 0
    assert (found.keypoints, found.with_keypoints) == ([], 0)
    assert found.decoding > 0


def test_crowds_and_bad_entries_are_left_out(make_coco_dataset):
    file, images = make_coco_dataset(keypoints=["nose"])
    content = json.loads(file.read_text())
    rows = content["annotations"]
    rows[0]["iscrowd"] = 1
    rows[1]["bbox"][2] = 0
    del rows[2]["segmentation"]
    del rows[3]["keypoints"]
    file.write_text(json.dumps(content))
    (images / "6.png").write_bytes(b"")
    found = measure(file, images)
    assert len(found.boxes) == 18 - 2 - 3  # and the three of the damaged picture
    assert found.with_masks == found.with_keypoints == 18 - 2 - 3 - 1
    assert found.unsound == 2
    assert found.unsound_masks == 3
    assert "annotation 2 (image 1): bbox" in found.first_unsound


def test_pictures_without_any_annotation_are_counted(make_coco_dataset):
    file, images = make_coco_dataset(images=3)
    content = json.loads(file.read_text())
    for row in content["annotations"]:
        row["iscrowd"] = int(row["image_id"] == 2)
    content["annotations"] = [row for row in content["annotations"] if row["image_id"] != 3]
    file.write_text(json.dumps(content))
    assert measure(file, images).empty == 1


def test_brightness_of_upper_and_lower_half(make_coco_dataset):
    file, images = make_coco_dataset(images=2, objects=1)
    assert abs(measure(file, images).top_bottom) < 0.1
    pixels = np.zeros((96, 128, 3), np.uint8)
    pixels[:48] = 204
    for name in ("1.png", "2.png"):
        Image.fromarray(pixels).save(images / name)
    assert measure(file, images).top_bottom == pytest.approx(0.8)


def test_sets_that_cannot_be_used(make_coco_dataset):
    file, images = make_coco_dataset()
    with pytest.raises(DataError, match="none of its 6 pictures can be used: image 1"):
        measure(file, images / "elsewhere")
    content = json.loads(file.read_text())
    for row in content["annotations"]:
        row["bbox"][3] = -1
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"no image has an object with a sound box.*height -1"):
        measure(file, images)
