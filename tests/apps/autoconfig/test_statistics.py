"""Statistics of a dataset."""

import json

import numpy as np
import pytest
from PIL import Image

from detlite.apps.autoconfig.statistics import _keypoint_pairs, compute_statistics
from detlite.files.errors import DataError


def test_statistics(make_coco_dataset):
    statistics = compute_statistics(*make_coco_dataset(ratio=4.0))
    assert statistics.sizes.shape == (6, 2)
    assert statistics.sizes[0].tolist() == [96, 128]
    assert len(statistics.boxes) == len(statistics.owners) == statistics.with_masks == 18
    assert statistics.per_image.tolist() == [3] * 6
    assert statistics.sides.min() >= 16
    assert statistics.sides.max() <= 40
    assert statistics.ratios == pytest.approx(np.full(18, 4.0))
    assert [row[0] for row in statistics.categories] == ["cat", "dog"]
    assert sum(row[1] for row in statistics.categories) == 18
    assert {count for count, _ in statistics.problems.values()} == {0}
    assert (statistics.keypoints, statistics.with_keypoints) == ([], 0)
    assert statistics.decoding > 0


def test_crowds_and_invalid_entries_do_not_count(make_coco_dataset):
    file, images = make_coco_dataset(keypoints=["nose"])
    content = json.loads(file.read_text())
    rows = content["annotations"]
    rows[0]["iscrowd"] = 1
    rows[1]["bbox"][0] = 200
    del rows[2]["segmentation"]
    del rows[3]["keypoints"]
    file.write_text(json.dumps(content))
    (images / "6.png").write_bytes(b"")
    statistics = compute_statistics(file, images)
    assert len(statistics.boxes) == 18 - 2 - 3  # 3 are in the damaged image
    assert statistics.with_masks == statistics.with_keypoints == 18 - 2 - 3 - 1
    assert statistics.problems[False, False][0] == statistics.problems[False, True][0] == 2
    assert statistics.problems[True, False][0] == 3
    assert "annotation 2 (image 1): bbox" in statistics.problems[False, False][1]


def test_empty_images_and_brightness_of_the_halves(make_coco_dataset):
    file, images = make_coco_dataset(images=3)
    content = json.loads(file.read_text())
    for row in content["annotations"]:
        row["iscrowd"] = int(row["image_id"] == 2)
    content["annotations"] = [row for row in content["annotations"] if row["image_id"] != 3]
    file.write_text(json.dumps(content))
    statistics = compute_statistics(file, images)
    assert statistics.empty == 1
    assert abs(statistics.top_bottom.mean()) < 0.1
    pixels = np.zeros((96, 128, 3), np.uint8)
    pixels[:48] = 204
    for name in ("1.png", "2.png", "3.png"):
        Image.fromarray(pixels).save(images / name)
    assert compute_statistics(file, images).top_bottom.mean() == pytest.approx(0.8)


def test_unusable_datasets_are_refused(make_coco_dataset):
    file, images = make_coco_dataset()
    with pytest.raises(DataError, match="none of its 6 images can be used: image 1"):
        compute_statistics(file, images / "elsewhere")
    content = json.loads(file.read_text())
    for row in content["annotations"]:
        row["bbox"], row["segmentation"] = [1, 1, 5, -1], []
    file.write_text(json.dumps(content))
    with pytest.raises(
        DataError, match=r"no image has an object that can be used.*positive width and height"
    ):
        compute_statistics(file, images)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"flip_idx": [0, 2, 1]}, [["b", "c"]]),
        ({"flip_idx": [0, 2]}, []),
        ({"flip_idx": [1, 2, 0]}, []),
        ({}, []),
    ],
)
def test_pairs_of_keypoints(fields, expected):
    assert _keypoint_pairs({"keypoints": ["a", "b", "c"], **fields}) == expected
