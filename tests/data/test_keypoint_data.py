"""Keypoints from the annotation file to the model and back to results."""

from __future__ import annotations

import pytest
import torch
from torchvision.transforms import v2

from detlite.data import CocoDataset, DataError
from detlite.data.transforms import DetectionTransform, RandomShortestSize
from detlite.evaluation import to_coco_results

NAMES = ["nose", "left_ear", "right_ear"]
POINTS = [6, 8, 2, 5, 7, 1, 0, 0, 0]


@pytest.fixture
def keypoint_content(content):
    for category in content["categories"]:
        category["keypoints"] = NAMES
    for row in content["annotations"]:
        row["keypoints"] = POINTS
    return content


def test_keypoints_are_pixel_centres(keypoint_content, write_set):
    dataset = CocoDataset(*write_set(keypoint_content), train=True, keypoints=True)
    assert dataset.keypoint_names == NAMES
    assert all(category["keypoints"] == NAMES for category in dataset.categories)
    _, target = dataset[0]
    assert target["keypoints"].shape == (2, 3, 3)
    assert target["keypoints"][0].tolist() == [[6.5, 8.5, 2], [5.5, 7.5, 1], [0.5, 0.5, 0]]


def test_without_a_keypoint_head_categories_are_plain(keypoint_content, write_set):
    dataset = CocoDataset(*write_set(keypoint_content), train=True)
    assert {tuple(category) for category in dataset.categories} == {("id", "name")}


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (None, "has no keypoints"), ([1, 2], "2 numbers, not x, y and visibility of 3"),
        (["a"] * 9, "not a list of finite numbers"), ([1.0] * 8 + [5], "not 0, 1 or 2"),
    ],
)  # fmt: skip
def test_bad_keypoints(keypoint_content, write_set, points, message):
    keypoint_content["annotations"][0]["keypoints"] = points
    with pytest.raises(DataError, match=rf"annotation 1 .*{message}"):
        CocoDataset(*write_set(keypoint_content), train=True, keypoints=True)


def test_keypoints_without_names(content, write_set):
    with pytest.raises(DataError, match="no category names its keypoints"):
        CocoDataset(*write_set(content), train=True, keypoints=True)


def target_of(points):
    return {
        "boxes": torch.tensor([[2.0, 3, 20, 25]]),
        "labels": torch.tensor([1]),
        "keypoints": torch.tensor([points]),
    }


@pytest.mark.parametrize(
    ("flips", "wanted"),
    [
        ([], [[12, 16, 2], [10, 14, 1], [40, 50, 2]]),
        ([v2.RandomHorizontalFlip(1.0)], [[68, 16, 2], [40, 50, 2], [70, 14, 1]]),
        ([v2.RandomVerticalFlip(1.0)], [[12, 44, 2], [40, 10, 2], [10, 46, 1]]),
        ([v2.RandomHorizontalFlip(1.0), v2.RandomVerticalFlip(1.0)],
         [[68, 44, 2], [70, 46, 1], [40, 10, 2]]),
    ],
)  # fmt: skip
def test_keypoints_move_with_the_picture(flips, wanted):
    transform = DetectionTransform([*flips, RandomShortestSize([60], 1000)], NAMES)
    image = torch.zeros(3, 30, 40, dtype=torch.uint8)
    _, target = transform(image, target_of([[6.0, 8, 2], [5.0, 7, 1], [20.0, 25, 2]]))
    wanted = torch.tensor([wanted])
    torch.testing.assert_close(target["keypoints"], wanted.float())


def test_results_are_pixel_indices_again():
    detections = {
        "boxes": torch.tensor([[0.0, 0, 20, 10]]), "labels": torch.tensor([1]),
        "scores": torch.tensor([0.5]), "keypoints": torch.tensor([[[6.5, 8.5, 1], [1, 2, 1]]]),
    }  # fmt: skip
    (result,) = to_coco_results(detections, 5, (10, 20), (20, 20), [{"id": 3, "name": "person"}])
    assert result["keypoints"] == [6, 16.5, 1, 0.5, 3.5, 1]
