"""Keypoints from the annotation file to the model and back to results."""

from __future__ import annotations

import pytest
import torch
from torchvision.transforms import v2

from detlite.conventions import CONVENTIONS
from detlite.data import CocoDataset, DataError, build_dataset, build_train_dataset
from detlite.data.transforms.augment import DetectionTransform
from detlite.data.transforms.resize import RandomShortestSize
from detlite.evaluation import to_coco_results
from detlite.structures.instances import Detections

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


def test_an_image_without_objects_is_evaluated(keypoint_content, write_set):
    dataset = CocoDataset(*write_set(keypoint_content), keypoints=True)
    _, target = dataset[dataset.image_ids.index(12)]
    assert target["keypoints"].shape == (0, 3, 3)


def test_without_a_keypoint_head_categories_are_plain(keypoint_content, write_set):
    dataset = CocoDataset(*write_set(keypoint_content), train=True)
    assert {tuple(category) for category in dataset.categories} == {("id", "name")}


@pytest.mark.parametrize(("least", "kept"), [(0, [10, 11]), (2, [10, 11]), (3, [10]), (4, [10])])
def test_images_with_few_keypoints_do_not_train(keypoint_content, write_set, least, kept):
    files = write_set(keypoint_content)  # two labelled keypoints an object, and two objects in 10
    dataset = CocoDataset(*files, train=True, keypoints=True, min_keypoints=least)
    assert dataset.image_ids == kept
    evaluated = CocoDataset(*files, keypoints=True, min_keypoints=least)
    assert evaluated.image_ids == [10, 11, 12, 13]


def test_no_image_with_as_many_keypoints(keypoint_content, write_set):
    files = write_set(keypoint_content)
    with pytest.raises(DataError, match="no image has a usable annotation and 5 keypoints"):
        CocoDataset(*files, train=True, keypoints=True, min_keypoints=5)


def test_the_config_says_how_many_keypoints_train(keypoint_content, write_set, small_cfg):
    write_set(keypoint_content, "few")
    entry = {"name": "few", "annotations": "few/annotations.json", "images": "few/images"}
    few = ["DATASETS.CATALOG", [entry], "DATASETS.MIN_KEYPOINTS_PER_IMAGE", 3]
    points = ["MODEL.KEYPOINT_ON", True]
    assert build_dataset(small_cfg(*few, *points), "few", train=True).image_ids == [10]
    assert build_dataset(small_cfg(*few), "few", train=True).image_ids == [10, 11]


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


@pytest.mark.parametrize("names", [None, [], 17, "abc", ["nose", 2]])
def test_keypoints_without_names(content, write_set, names):
    content["categories"][0]["keypoints"] = names
    with pytest.raises(DataError, match="no category names its keypoints"):
        CocoDataset(*write_set(content), train=True, keypoints=True)


def test_joined_sets_may_name_their_keypoints_with_one_category(
    keypoint_content, write_set, small_cfg
):
    write_set(keypoint_content)
    del keypoint_content["categories"][0]["keypoints"]
    write_set(keypoint_content, "other")
    cfg = small_cfg(
        "MODEL.KEYPOINT_ON", True, "DATASETS.TRAIN", ("small", "other"),
        "MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES", len(NAMES),
    )  # fmt: skip
    assert build_train_dataset(cfg).keypoint_names == NAMES


def test_joined_sets_need_the_same_keypoints(keypoint_content, write_set, small_cfg):
    write_set(keypoint_content)
    for category in keypoint_content["categories"]:
        category["keypoints"] = NAMES[::-1]
    write_set(keypoint_content, "other")
    cfg = small_cfg("MODEL.KEYPOINT_ON", True, "DATASETS.TRAIN", ("small", "other"))
    with pytest.raises(DataError, match=r"other.*: has other keypoints than .*small"):
        build_train_dataset(cfg)


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


@pytest.mark.parametrize("flip", [v2.RandomHorizontalFlip, v2.RandomVerticalFlip])
def test_keypoints_may_be_moved_as_indices(flip):
    resize = RandomShortestSize([60], 1000)
    image = torch.zeros(3, 30, 40, dtype=torch.uint8)  # enlarged to 60 x 80
    given = target_of([[6.5, 8.5, 2], [5.5, 7.5, 1], [20.5, 25.5, 2]])  # indices and a half
    _, plain = DetectionTransform([resize], NAMES, keypoint_center=0.0)(image, given)
    assert plain["keypoints"].tolist() == [[[12, 16, 2], [10, 14, 1], [40, 50, 2]]]
    _, mirrored = DetectionTransform([resize, flip(1.0)], NAMES, keypoint_center=0.0)(image, given)
    wide = flip is v2.RandomHorizontalFlip
    first = [79 - 12, 16, 2] if wide else [12, 59 - 16, 2]
    assert mirrored["keypoints"][0, 0].tolist() == first


def detected(keypoints):
    """A person with such keypoints, in an image of 10 x 20."""
    return Detections(
        boxes=torch.tensor([[0.0, 0, 20, 10]]),
        scores=torch.tensor([0.5]),
        labels=torch.tensor([1]),
        valid=torch.tensor([True]),
        keypoints=torch.tensor([keypoints]),
        keypoint_scores=torch.zeros(1, len(keypoints)),
    )


PERSON = [{"id": 3, "name": "person"}]


def test_indices_stay_indices_in_results():
    corner = CONVENTIONS["torchvision"]
    found = detected([[6.0, 8.5, 1]])
    (result,) = to_coco_results(found, 5, (10, 20), (20, 20), PERSON, corner).to_coco()
    assert result["keypoints"] == [6, 17, 1]


def test_results_are_pixel_indices_again():
    found = detected([[6.5, 8.5, 1], [1, 2, 1]])
    (result,) = to_coco_results(found, 5, (10, 20), (20, 20), PERSON).to_coco()
    assert result["keypoints"] == [6, 16.5, 1, 0.5, 3.5, 1]
