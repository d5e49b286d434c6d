"""CocoDataset: targets, the choice of images, and the ground truth of evaluation."""

import json
import pickle

import pytest
import torch

from detlite.data import CocoDataset, DataError, build_dataset, build_train_dataset
from detlite.data.datasets.ground_truth import build_coco_gt
from detlite.data.datasets.options import DatasetOptions


def test_target_has_contiguous_labels_xyxy_boxes_and_masks(content, open_set):
    dataset = open_set(content, train=True)
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


def test_choice_of_images(content, open_set):
    """An image with only a crowd is not background, and a crowd is no target."""
    trained = open_set(content, "train", train=True)
    assert (trained.image_ids, trained.aspect_ratios) == ([10, 11], [40 / 30, 0.5])
    masks = trained[1][1]["masks"].bitmaps(40, 20)  # of uncompressed run lengths
    assert masks[0, :, :10].all()
    assert not masks[0, :, 10:].any()
    background = open_set(content, "background", train=True, background=True)
    assert background.image_ids == [10, 11, 12]
    target = background[2][1]
    assert [len(target[name]) for name in ("boxes", "labels", "masks")] == [0, 0, 0]
    evaluated = open_set(content, "test", train=False)
    assert evaluated.image_ids == [10, 11, 12, 13]
    for target in (evaluated[2][1], evaluated[3][1]):
        assert (target["boxes"].shape, target["labels"].shape) == ((0, 4), (0,))
        assert "masks" not in target
    content["annotations"] = []
    empty = open_set(content, train=True, background=True)
    assert (empty.image_ids, empty.has_objects) == ([10, 11, 12, 13], False)


def test_boxes_only_set_needs_no_segmentation(content, open_set):
    content["annotations"][0]["bbox"] = [-1.5, -0.5, 41.5, 30]  # slightly outside
    for annotation in content["annotations"]:
        annotation.pop("segmentation")
    dataset = open_set(content, train=True, masks=False)
    assert "masks" not in dataset[0][1]
    assert dataset[0][1]["boxes"][0].tolist() == [0, 0, 40, 29.5]
    gt = build_coco_gt(dataset)
    assert {row["area"] for row in gt.loadAnns([2, 3])} == {800.0, 100.0}


def test_ground_truth_is_complete_and_includes_crowd(content, open_set):
    gt = build_coco_gt(open_set(content, train=False))
    assert sorted(gt.getImgIds()) == [10, 11, 12, 13]
    rows = {row["id"]: row for row in gt.loadAnns(gt.getAnnIds())}
    assert {key: row["iscrowd"] for key, row in rows.items()} == {1: 0, 2: 0, 3: 0, 4: 1}
    assert {key: row["area"] for key, row in rows.items()} == {1: 80, 2: 400, 3: 100, 4: 384}
    assert gt.dataset["info"] == {}
    assert gt.dataset["licenses"] == []
    gt = build_coco_gt(open_set(content, "trained", train=True), annotations=False)
    assert (sorted(gt.imgs), sorted(gt.cats), gt.anns) == ([10, 11], [3, 7], {})


@pytest.mark.parametrize("train", [True, False])
def test_objects_below_the_minimum_area_are_ignored_regions(content, open_set, train):
    """Annotation 1 states 80 pixels, 3 has 100 and no area; a crowd stays a crowd."""
    small = open_set(content, train=train, min_area=90)
    for dataset in (small, pickle.loads(pickle.dumps(small))):
        assert dataset.labels(0).tolist() == [1]
        target = dataset[0][1]
        assert target["boxes"].tolist() == [[20, 10, 30, 20]]
        assert not train or target["ignored_boxes"].tolist() == [[4, 6, 14, 14]]
    crowds = {row["id"]: row["iscrowd"] for row in build_coco_gt(small).anns.values()}
    assert crowds == {1: 1, 2: 0, 3: 0} | ({} if train else {4: 1})
    (finding,) = (one for one in small.findings if "INPUT.MIN_AREA" in str(one))
    assert str(finding).startswith("objects of fewer than 90 pixels (INPUT.MIN_AREA): 1 of 4")


def test_labels_equal_those_of_targets(content, open_set):
    content["annotations"][0]["segmentation"] = []
    for skipped in (False, True):
        dataset = open_set(content, str(skipped), skip_bad=True, masks=skipped)
        for index in range(4):
            assert dataset.labels(index).tolist() == dataset[index][1]["labels"].tolist()
        assert dataset.labels(0).tolist() == ([1] if skipped else [2, 1])


def test_images_named_by_url_only(content, write_set):
    """LVIS v1 does this."""
    file, folder = write_set(content)
    name = content["images"][0].pop("file_name")
    content["images"][0]["coco_url"] = f"http://images.example.org/train2017/{name}"
    file.write_text(json.dumps(content))
    (folder / "train2017").mkdir()
    (folder / name).rename(folder / "train2017" / name)
    assert CocoDataset(file, folder).image_path(0) == folder / "train2017" / name


@pytest.mark.parametrize(
    ("path", "masks", "images", "categories"),
    [
        ("nuclei_dsb2018/annotations/instances_val.json", True, 108, 1),
        ("bccd/annotations/instances_val.json", False, 72, 3),
        ("coco_open/annotations/instances_train.json", True, 92, 80),
        ("coco_open/annotations/person_keypoints_train.json", True, 39, 1),
    ],
)
def test_real_datasets_are_valid(real_data, path, masks, images, categories):
    file = real_data / path
    dataset = CocoDataset(file, file.parents[1] / "images", DatasetOptions(masks=masks))
    assert (len(dataset), len(dataset.categories)) == (images, categories)
    for image, target in (dataset[0], dataset[len(dataset) - 1]):
        assert image.shape == (3, *target["size"])
        assert all(1 <= label <= categories for label in target["labels"].tolist())
    rows = json.loads(file.read_text())["annotations"]
    assert len(build_coco_gt(dataset).getAnnIds()) == len(rows)


# Keypoints

NAMES = ["nose", "left_ear", "right_ear"]
NAN = float("nan")
POINTS = [6, 8, 2, 5, 7, 1, 0, 0, 0]


@pytest.fixture
def keypoint_content(content):
    for category in content["categories"]:
        category["keypoints"] = NAMES
    for row in content["annotations"]:
        row["keypoints"] = POINTS
    return content


def test_keypoints_are_at_pixel_centers(keypoint_content, open_set):
    dataset = open_set(keypoint_content, train=True, keypoints=True)
    assert dataset.keypoint_names == NAMES
    assert all(category["keypoints"] == NAMES for category in dataset.categories)
    _, target = dataset[0]
    assert target["keypoints"].shape == (2, 3, 3)
    assert target["keypoints"][0].tolist() == [[6.5, 8.5, 2], [5.5, 7.5, 1], [0.5, 0.5, 0]]


@pytest.mark.parametrize(
    ("minimum", "image_ids"), [(0, [10, 11]), (2, [10, 11]), (3, [10]), (4, [10])]
)
def test_training_needs_enough_keypoints(keypoint_content, write_set, minimum, image_ids):
    files = write_set(keypoint_content)  # two labeled keypoints per object, two objects in image 10
    dataset = CocoDataset(*files, DatasetOptions(train=True, keypoints=True, min_keypoints=minimum))
    assert dataset.image_ids == image_ids
    evaluated = CocoDataset(*files, DatasetOptions(keypoints=True, min_keypoints=minimum))
    assert evaluated.image_ids == [10, 11, 12, 13]
    assert evaluated[2][1]["keypoints"].shape == (0, 3, 3)
    assert {*evaluated.categories[0]} == {"id", "name", "keypoints"}
    assert {*CocoDataset(*files).categories[0]} == {"id", "name"}
    with pytest.raises(DataError, match="no image has a usable annotation and 5 keypoints"):
        CocoDataset(*files, DatasetOptions(train=True, keypoints=True, min_keypoints=5))


def test_minimum_number_of_keypoints_in_the_config(keypoint_content, write_set, small_cfg):
    write_set(keypoint_content, "few")
    entry = {"name": "few", "annotations": "few/annotations.json", "images": "few/images"}
    few = ["DATASETS.CATALOG", [entry], "DATASETS.MIN_KEYPOINTS_PER_IMAGE", 3]
    points = ["MODEL.KEYPOINT_ON", True]
    assert build_dataset(small_cfg(*few, *points), "few", train=True).image_ids == [10]
    assert build_dataset(small_cfg(*few), "few", train=True).image_ids == [10, 11]


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([1, 2], r"keypoints \[1, 2\] is not x, y and visibility"),
        (["a"] * 9, "of 3 points"), ([1.0] * 8 + [5], r"visibility \(0, 1 or 2\)"),
    ],
)  # fmt: skip
def test_bad_keypoints(keypoint_content, open_set, points, message):
    keypoint_content["annotations"][0]["keypoints"] = points
    with pytest.raises(DataError, match=rf"annotation 1 .*{message}"):
        open_set(keypoint_content, train=True, keypoints=True)


@pytest.mark.parametrize("names", [None, [], 17, "abc", ["nose", 2]])
def test_keypoints_without_names(content, open_set, names):
    content["categories"][0]["keypoints"] = names
    with pytest.raises(DataError, match="no category has keypoint names"):
        open_set(content, train=True, keypoints=True)


def test_concatenated_sets_need_the_same_keypoints(keypoint_content, write_set, small_cfg):
    write_set(keypoint_content)
    file, _ = write_set(keypoint_content, "other")
    first, second = keypoint_content["categories"]
    points = "MODEL.KEYPOINT_ON", True, "MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES", len(NAMES)
    cfg = small_cfg(*points, "DATASETS.TRAIN", ("small", "other"))
    del first["keypoints"]  # names of one category suffice
    file.write_text(json.dumps(keypoint_content))
    assert build_train_dataset(cfg).keypoint_names == NAMES
    second["keypoints"] = NAMES[::-1]
    file.write_text(json.dumps(keypoint_content))
    with pytest.raises(DataError, match=r"other.*: the keypoints differ from those of .*small"):
        build_train_dataset(cfg)


def test_objects_without_keypoints_have_unlabeled_ones(keypoint_content, open_set):
    for row, value in zip(keypoint_content["annotations"], ([], None, [0] * 9), strict=False):
        row["keypoints"] = value
        row["num_keypoints"] = None
    dataset = open_set(keypoint_content, train=True, keypoints=True)
    _, target = dataset[0]
    assert not target["keypoints"][..., 2].any()
    assert len(target["boxes"]) == 2


def _with_points(points):
    return lambda content: content["annotations"][0].update(keypoints=points)


# Converters write unlabeled keypoints, fractions, or keypoints for another image size.
_ELSEWHERE = "the box: 1 annotation, for example annotation 1 (image 10): keypoints ["
FINDINGS = [
    *((_with_points(points), False, _ELSEWHERE) for points in (
        [0, 0, 2, 5, 7, 2, 9, 9, 1], [0.2, 0.3, 2] * 3, [50, 9, 1] * 3)),
    (lambda content: content["annotations"][0].update(num_keypoints=0), True,
     'labeled keypoints and "num_keypoints": 0: 1 annotation, for example annotation 1'),
    (lambda content: content["categories"][0].update(keypoints=NAMES[::-1]), True,
     "categories whose keypoints have other names: 1 category"),
    (lambda content: [row.pop("keypoints") for row in content["categories"]], False,
     "keypoints that no category names: 4 annotations, for example annotation 1"),
    (lambda content: [row.update(keypoints=[5, 7]) for row in content["annotations"]], False,
     "because MODEL.KEYPOINT_ON is False: 3 of 3 objects, for example annotation 1 (image 10): "
     "keypoints [5, 7]"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "keypoints", "text"), FINDINGS)
def test_findings_about_keypoints(keypoint_content, open_set, change, keypoints, text):
    for row in keypoint_content["annotations"]:
        row["keypoints"] = [row["bbox"][0] + 1, row["bbox"][1] + 1, 2] * 3
    before = "\n".join(map(str, open_set(keypoint_content).findings))
    change(keypoint_content)
    after = open_set(keypoint_content, "changed", keypoints=keypoints).findings
    assert text in "\n".join(map(str, after))
    assert text.partition(":")[0] not in before


def test_findings_about_the_config(keypoint_content, write_set, small_cfg):
    for category in keypoint_content["categories"]:
        category["keypoints"] = ["left_eye", "right_eye", "left_ear"]
    write_set(keypoint_content, "other")
    for category in keypoint_content["categories"]:
        category["keypoints"] = ["ojo 1", "ojo 2", "nariz"]
    write_set(keypoint_content)
    points = ["MODEL.KEYPOINT_ON", True, "MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES", 3]
    limits = "MODEL.ROI_HEADS.DETECTIONS_PER_IMG", 1, "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", 7
    cfg = small_cfg(*points, *limits, "MODEL.RPN.POST_NMS_TOP_N_TEST", 1)
    texts = "\n".join(map(str, build_dataset(cfg, "small", train=True).findings))
    assert "than proposals: 1 of 4 images, for example image 10 with 2. MODEL.RPN.POST" in texts
    assert "TOP_N_TEST is 1: set it above 2" in texts
    assert "than positive RoIs: 1 of 4 images, for example image 10 with 2. Each iter" in texts
    assert "all of up to 2 at once, set MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE: 8; iter" in texts
    assert "more objects than are detected: 1 of 4 images, for example image 10 with 2" in texts
    assert "Images are mirrored without exchanging keypoints." in texts
    cfg = small_cfg(*points, "DATASETS.KEYPOINT_FLIP_PAIRS", [["ojo 1", "ojo 2"]])
    texts = "\n".join(map(str, build_dataset(cfg, "small", train=True).findings))
    assert "mirrored" not in texts
    assert "keypoints that mirroring does not exchange" not in texts
    assert "more objects" not in texts
    texts = "\n".join(map(str, build_dataset(cfg, "other", train=True).findings))
    assert "mirroring does not exchange: 1 name, for example left_ear. If they are left" in texts
