"""CocoDataset on sound sets: targets, what is kept, ground truth for evaluation."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import torch
from pycocotools.cocoeval import COCOeval

from detlite.data import CocoDataset, DataError
from detlite.data.datasets.coco_checks import fill_missing


def test_target_has_contiguous_labels_xyxy_boxes_and_masks(content, write_set):
    dataset = CocoDataset(*write_set(content), train=True)
    assert dataset.categories == [{"id": 3, "name": "dog"}, {"id": 7, "name": "cat"}]
    image, target = dataset[0]
    assert image.dtype == torch.uint8
    assert image.shape == (3, 30, 40)
    assert target["boxes"].dtype == torch.float32
    assert target["boxes"].tolist() == [[4, 6, 14, 14], [20, 10, 30, 20]]
    assert target["labels"].tolist() == [2, 1]
    assert target["labels"].dtype == torch.int64
    assert target["image_id"] == 10
    assert target["size"] == (30, 40)
    expected = torch.zeros(2, 30, 40, dtype=torch.uint8)
    expected[0, 6:14, 4:14] = 1
    expected[1, 10:20, 20:30] = 1
    assert torch.equal(target["masks"].bitmaps(30, 40), expected)


def test_uncompressed_rle_is_decoded_column_by_column(content, write_set):
    _, target = CocoDataset(*write_set(content), train=True)[1]
    masks = target["masks"].bitmaps(40, 20)
    assert masks.shape == (1, 40, 20)
    assert masks[0, :, :10].all()
    assert not masks[0, :, 10:].any()


@pytest.mark.parametrize("as_runs", [False, True])
def test_polygons_stay_unless_the_convention_trains_on_pixels(content, write_set, as_runs):
    dataset = CocoDataset(*write_set(content), train=True, masks_as_runs=as_runs)
    polygons, runs = (dataset[index][1]["masks"] for index in (0, 1))
    assert (polygons.frames[:, 0] > 0).tolist() == [as_runs] * 2
    assert runs.frames.tolist() == [[40, 20, 0, 0, 40, 20]]
    if not as_runs:
        assert polygons.values[:8].tolist() == [4, 6, 14, 6, 14, 14, 4, 14]


def test_training_drops_empty_and_crowd_only_images(content, write_set):
    dataset = CocoDataset(*write_set(content), train=True)
    assert dataset.image_ids == [10, 11]
    assert dataset.aspect_ratios == [40 / 30, 0.5]


def test_background_is_trained_on_if_asked_for(content, write_set):
    """Not a picture of a crowd alone, whose objects are there and not marked one by one."""
    dataset = CocoDataset(*write_set(content), train=True, background=True)
    assert dataset.image_ids == [10, 11, 12]
    _, target = dataset[2]
    assert len(target["boxes"]) == len(target["labels"]) == len(target["masks"]) == 0


def test_background_alone_teaches_nothing(content, write_set):
    content["annotations"] = []
    with pytest.raises(DataError, match="no image has a usable annotation"):
        CocoDataset(*write_set(content), train=True, background=True)


def test_evaluation_keeps_all_images_and_decodes_no_masks(content, write_set):
    dataset = CocoDataset(*write_set(content), train=False)
    assert dataset.image_ids == [10, 11, 12, 13]
    _, target = dataset[2]
    assert target["boxes"].shape == (0, 4)
    assert target["labels"].shape == (0,)
    assert "masks" not in target
    assert len(dataset[3][1]["boxes"]) == 0  # crowd is no target


def test_boxes_only_set_needs_no_segmentation(content, write_set):
    for annotation in content["annotations"]:
        annotation.pop("segmentation")
    dataset = CocoDataset(*write_set(content), train=True, masks=False)
    assert "masks" not in dataset[0][1]
    gt = dataset.coco_gt()
    assert {row["area"] for row in gt.loadAnns([2, 3])} == {800.0, 100.0}


def test_box_that_overhangs_a_little_is_clipped(content, write_set):
    content["annotations"][0]["bbox"] = [-1.5, -0.5, 41.5, 30]
    _, target = CocoDataset(*write_set(content), train=True)[0]
    assert target["boxes"][0].tolist() == [0, 0, 40, 29.5]


def test_ground_truth_is_complete_and_includes_crowd(content, write_set):
    gt = CocoDataset(*write_set(content), train=False).coco_gt()
    assert sorted(gt.getImgIds()) == [10, 11, 12, 13]
    rows = {row["id"]: row for row in gt.loadAnns(gt.getAnnIds())}
    assert {key: row["iscrowd"] for key, row in rows.items()} == {1: 0, 2: 0, 3: 0, 4: 1}
    assert {key: row["area"] for key, row in rows.items()} == {1: 80, 2: 400, 3: 100, 4: 384}
    assert gt.dataset["info"] == {}
    assert gt.dataset["licenses"] == []


def test_images_and_categories_alone(content, write_set):
    gt = CocoDataset(*write_set(content), train=True).coco_gt(annotations=False)
    assert sorted(gt.imgs) == [10, 11]
    assert sorted(gt.cats) == [3, 7]
    assert not gt.anns


def test_labels_are_those_of_targets(content, write_set):
    content["annotations"][0]["segmentation"] = []
    for skipped in (False, True):
        dataset = CocoDataset(*write_set(content, str(skipped)), skip_bad=True, masks=skipped)
        for index in range(4):
            assert dataset.labels(index).tolist() == dataset[index][1]["labels"].tolist()
        assert dataset.labels(0).tolist() == ([1] if skipped else [2, 1])


def test_annotation_id_zero_can_be_matched(content, write_set, capsys):
    for annotation in content["annotations"]:
        annotation["id"] -= 1
    gt = CocoDataset(*write_set(content), train=False).coco_gt()
    perfect = [{**row, "score": 1.0} for row in gt.loadAnns(gt.getAnnIds(iscrowd=False))]
    evaluation = COCOeval(gt, gt.loadRes(perfect), "segm")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    assert evaluation.stats[0] == pytest.approx(1.0)


def test_fill_missing_keeps_what_is_there(content):
    content["info"] = {"year": 2026}
    filled = fill_missing(content)
    assert filled is content
    assert content["info"] == {"year": 2026}
    assert content["annotations"][0]["area"] == 80


def test_fill_missing_takes_the_area_of_compressed_rle(content):
    # 3 background, 4 foreground, 9 background in 4 x 4: one character each, '0' being zero.
    rle = {"size": [4, 4], "counts": "349"}
    content["images"] = [{"id": 10, "file_name": "a.png", "height": 4, "width": 4}]
    content["annotations"] = [
        {"id": 1, "image_id": 10, "category_id": 7, "bbox": [0, 0, 4, 4], "segmentation": rle}
    ]
    assert fill_missing(content)["annotations"][0]["area"] == 4


def test_pictures_that_only_an_address_names(content, write_set):
    """As in LVIS v1."""
    file, folder = write_set(content)
    name = content["images"][0].pop("file_name")
    content["images"][0]["coco_url"] = f"http://images.example.org/train2017/{name}"
    file.write_text(json.dumps(content))
    (folder / "train2017").mkdir()
    (folder / name).rename(folder / "train2017" / name)
    assert CocoDataset(file, folder).image_path(0) == folder / "train2017" / name


def test_dataset_can_be_sent_to_another_process(content, write_set):
    dataset = CocoDataset(*write_set(content), train=True)
    copy = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(copy[0][1]["masks"].values, dataset[0][1]["masks"].values)


@pytest.mark.parametrize(
    ("path", "masks", "images", "categories"),
    [
        ("nuclei_dsb2018/annotations/instances_train.json", True, 430, 1),
        ("nuclei_dsb2018/annotations/instances_val.json", True, 108, 1),
        ("bccd/annotations/instances_train.json", False, 292, 3),
        ("bccd/annotations/instances_val.json", False, 72, 3),
        ("coco_open/annotations/instances_train.json", True, 92, 80),
        ("coco_open/annotations/instances_val.json", True, 66, 80),
        ("coco_open/annotations/person_keypoints_train.json", True, 39, 1),
        ("coco_open/annotations/person_keypoints_val.json", True, 44, 1),
    ],
)
def test_real_set_is_sound(real_data, path, masks, images, categories):
    file = real_data / path
    dataset = CocoDataset(file, file.parents[1] / "images", masks=masks)
    assert len(dataset) == images
    assert len(dataset.categories) == categories
    for image, target in (dataset[0], dataset[len(dataset) - 1]):
        assert image.shape == (3, *target["size"])
        assert all(1 <= label <= categories for label in target["labels"].tolist())
    gt = dataset.coco_gt()
    assert len(gt.getAnnIds()) == len(json.loads(file.read_text())["annotations"])


def test_real_sparse_ids_crowd_and_grey_picture(real_data):
    folder = real_data / "coco_open"
    file = folder / "annotations/instances_train.json"
    dataset = CocoDataset(file, folder / "images", train=True)
    assert [row["id"] for row in dataset.categories] == sorted(
        row["id"] for row in dataset.categories
    )
    assert dataset.categories[79] == {"id": 90, "name": "toothbrush"}
    rows = json.loads(file.read_text())["annotations"]
    not_crowd = [row for row in rows if not row["iscrowd"]]
    targets = [dataset[i] for i in range(len(dataset))]
    assert sum(len(target["boxes"]) for _, target in targets) == len(not_crowd) == 820
    # Masks and boxes agree up to the few pixels that COCO's are off.
    off = []
    for _, target in targets:
        for box, mask in zip(
            target["boxes"], target["masks"].bitmaps(*target["size"]), strict=True
        ):
            rows_set, columns_set = np.nonzero(mask.numpy())
            if len(rows_set):
                tight = [columns_set.min(), rows_set.min(), columns_set.max(), rows_set.max()]
                off.append(np.abs(box.numpy() - tight).max())
    assert np.median(off) < 2
    grey = [image for image, _ in targets if torch.equal(image[0], image[2])]
    assert len(grey) >= 1
