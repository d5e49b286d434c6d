"""Invalid data sets are refused, or skipped and counted, before training starts."""

import json
import logging
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from detlite.data.datasets.coco import CocoDataset
from detlite.data.datasets.coco_checks import box_problem, segmentation_problem
from detlite.data.errors import DataError
from detlite.data.loading.image_io import ImageOptions
from detlite.structures.masks.formats import encode_bitmap

NAN = float("nan")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ('{"images": ' + "[" * 100_000, "not in COCO form: the JSON is nested too deeply"),
        ("\xff\xfe{}", "not valid JSON"),
        ("[1, 2]", "not in COCO form: a JSON list"),
        ("{}", "not in COCO form: 'images' is missing"),
        ('{"images": {}}', "'images' must be a list of objects"),
        ('{"images": [3]}', "'images' must be a list of objects"),
        ('{"images": [{"id": 1}]}', "'annotations' is missing"),
        ('{"images": [], "annotations": [], "categories": []}', "'images' is empty"),
    ],
)
def test_files_not_in_coco_form(tmp_path, text, message):
    file = tmp_path / "annotations.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=message) as error:
        CocoDataset(file, tmp_path)
    assert str(file) in str(error.value)


def test_missing_annotation_file(tmp_path):
    with pytest.raises(DataError, match=r"none\.json: cannot be read \(No such file"):
        CocoDataset(tmp_path / "none.json", tmp_path)


def test_folder_as_annotation_file(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        CocoDataset(tmp_path, tmp_path)


def test_missing_image_folder(content, write_set, tmp_path):
    file, _ = write_set(content)
    with pytest.raises(DataError, match=r"elsewhere: the image folder .* does not exist"):
        CocoDataset(file, tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("key", "change", "message"),
    [
        ("images", {"id": 11}, "id 11 occurs twice in 'images'"),
        ("images", {"id": None}, r"images\[0\] \(id None\) has id: None, not an int"),
        ("images", {"file_name": 5}, r"images\[0\] \(id 10\) has file_name: 5, not a str"),
        ("images", {"width": "40"}, "has width: '40', not an int"),
        ("images", {"height": 0}, "image 10 has size 40x0"),
        ("categories", {"id": 3}, "id 3 occurs twice in 'categories'"),
        ("categories", {"name": None}, "has name: None, not a str"),
        ("categories", {"name": "dog"}, "categories 7 and 3 have the same name 'dog'"),
        ("images", {"width": "w" * 5000}, r"has width: 'w{79}\.\.\. \(5002 characters\), not an"),
    ],
)
def test_bad_image_or_category_entry(content, write_set, key, change, message):
    file, folder = write_set(content)
    content[key][0].update(change)
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match=message) as error:
        CocoDataset(file, folder)
    assert str(file) in str(error.value)


BAD_ANNOTATIONS = [
    ({"bbox": [4, 6, 0, 8]}, "width 0 and height 8: both must be positive"),
    ({"bbox": [4, 6, 10, -8]}, "height -8: both must be positive"),
    ({"bbox": [4, NAN, 10, 8]}, "not four finite numbers"),
    ({"bbox": [4, 6, 10]}, "not four finite numbers"),
    ({"bbox": None}, "bbox is None"),
    ({"bbox": ["4", 6, 10, 8]}, "not four finite numbers"),
    ({"bbox": [40, 6, 10, 8]}, "is outside the 40x30 image"),
    ({"bbox": [-20, -20, 10, 8]}, "is outside the 40x30 image"),
    ({"bbox": [30, 6, 20, 8]}, "exceeds the 40x30 image"),
    ({"category_id": 9}, "category_id 9 is not in"),
    ({"category_id": [7]}, r"category_id is \[7\], not an int"),
    ({"image_id": 99}, "image_id 99 is not in 'images'"),
    ({"id": 3}, "annotation 3 .*: the id occurs twice"),
    ({"id": None}, "id is None, not an int"),
    ({"iscrowd": 2}, "iscrowd is 2"),
    ({"area": "80"}, "area is '80', not a number"),
    ({"area": NAN}, "area is nan, not a number"),
    ({"area": -1}, "area is -1, not a number"),
    ({"segmentation": None}, "no segmentation, but MODEL.MASK_ON"),
    ({"segmentation": []}, r"segmentation is empty: \[\]"),
    ({"segmentation": "x"}, "segmentation is a str"),
    ({"segmentation": [[]]}, "polygon of 0 numbers"),
    ({"segmentation": [[1, 1, 9, 9]]}, "polygon of 4 numbers"),
    ({"segmentation": [[1, 1, 9, 9, 1, 9, 4]]}, "polygon of 7 numbers"),
    ({"segmentation": [[1, 1, 9, NAN, 1, 9]]}, "not a list of finite numbers"),
    ({"segmentation": [4, 6, 14, 6, 14, 14]}, "is a single polygon, not a list of polygons"),
    ({"segmentation": [[50, 1, 60, 1, 55, 9]]}, "segmentation is outside the 40x30"),
    ({"segmentation": [[1, 1, 1e300, 1, 1e300, 50]]}, "segmentation exceeds the 40x30 image"),
    ({"segmentation": [[1, 1, 1e9, 1, 1e9, 20]]}, "segmentation exceeds the 40x30 image"),
    ({"segmentation": [[1, -9, 9, 1, 1, 9]]}, "more than the 2 pixels or 10% of its side"),
    ({"segmentation": [[1, 1, 5, 1, 5, 5], [46, 1, 9, 9, 1, 9]]}, "exceeds the 40x30"),
    ({"bbox": [30, 6, 1e-9, 8]}, "a side of 1e-09, too short for 32-bit numbers"),
    ({"bbox": [3, 29.9999999, 9, 2]}, "a side of 2, too short for 32-bit numbers"),
    ({"bbox": "x" * 5000}, r"bbox is 'x{79}\.\.\. \(5002 characters\), not four"),
    ({"segmentation": {"size": [40, 30], "counts": [0, 1200]}}, "its image .30, 40"),
    ({"segmentation": {"size": [30, 40], "counts": [0, 1000]}}, "over 1000 of 1200 pixels"),
    ({"segmentation": {"size": [30, 40], "counts": [1300, -100]}}, "not run lengths"),
    ({"segmentation": {"size": [30, 40], "counts": [1200]}}, "empty: no pixel"),
    ({"segmentation": {"size": [30, 40], "counts": 5}}, "not run lengths"),
    ({"segmentation": {"size": [30, 40], "counts": None}}, "not run lengths"),
    ({"segmentation": {"size": [30, 40], "counts": [0, 1200.0]}}, "not run lengths"),
    ({"segmentation": {"size": [30, 40], "counts": [0, 2**64]}}, "not run lengths"),
    # sums that overflow 64 bits to 1200
    ({"segmentation": {"size": [30, 40], "counts": [2**62] * 4 + [1200]}}, "of 1200 pixels"),
    ({"segmentation": {"size": [30, 40], "counts": "P" * 12 + "0"}}, "not run lengths"),
    ({"segmentation": {"size": [30, 40]}}, "not run lengths"),
    ({"segmentation": {"size": [30, 40], "counts": "`U1"}}, "empty: no pixel"),
    ({"segmentation": {"size": [30, 40], "counts": "0`U1o"}}, "not run lengths"),
    ({"segmentation": {"size": [30, 40], "counts": "0`U1 "}}, "not run lengths"),
    ({"segmentation": {"size": [30, 40], "counts": "0`U1O"}}, "not run lengths"),
    ({"segmentation": {"size": [30, 40], "counts": "01"}}, "over 1 of 1200 pixels"),
]


@pytest.mark.parametrize(("change", "message"), BAD_ANNOTATIONS)
def test_error_names_the_bad_annotation(content, write_set, change, message):
    content["annotations"][0].update(change)
    file, folder = write_set(content)
    with pytest.raises(DataError, match=message) as error:
        CocoDataset(file, folder, train=True)
    assert str(file) in str(error.value)
    assert "annotation " in str(error.value)


@pytest.mark.parametrize("change", [change for change, _ in BAD_ANNOTATIONS])
def test_bad_annotation_can_be_skipped(content, write_set, change, caplog):
    content["annotations"][0].update(change)
    file, folder = write_set(content)
    with caplog.at_level(logging.WARNING):
        dataset = CocoDataset(file, folder, train=True, skip_bad=True)
    assert len(dataset[0][1]["boxes"]) == 1
    assert "skipped 1 bad entries in total" in caplog.text
    assert len(dataset.coco_gt().getAnnIds()) == 2  # crowd is in an image that training drops


def test_long_problems_are_shortened(content, write_set, caplog):
    file, folder = write_set(content)
    content["images"][0]["file_name"] = "n" * 5000
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match="image 10") as error:
        CocoDataset(file, folder)
    assert len(str(error.value)) < 1000
    CocoDataset(file, folder, skip_bad=True)
    assert max(map(len, caplog.text.splitlines())) < 1000


def test_area_of_an_unchecked_segmentation(content, write_set):
    """A segmentation that was not checked must not be drawn."""
    content["annotations"][2]["segmentation"] = [[1, 1, 1e300, 1, 1e300, 50]]
    coco = CocoDataset(*write_set(content), masks=False).coco_gt()
    assert coco.loadAnns([3])[0]["area"] == 100


def test_error_counts_the_problems(content, write_set):
    content["annotations"][0]["bbox"][2] = 0
    content["annotations"][2]["category_id"] = 9
    with pytest.raises(DataError, match=r"annotation 1 .*first of 2 problems.*ON_BAD_ANNOTATION"):
        CocoDataset(*write_set(content))


def test_training_needs_a_usable_annotation(content, write_set):
    content["annotations"] = content["annotations"][3:]
    file, folder = write_set(content)
    with pytest.raises(DataError, match="no image has a usable annotation"):
        CocoDataset(file, folder, train=True)
    assert len(CocoDataset(file, folder, train=False)) == 4


def test_bad_images_are_found_in_advance(content, write_set, caplog):
    file, folder = write_set(content)
    (folder / "a.png").unlink()
    (folder / "b.png").write_bytes((folder / "b.png").read_bytes()[:-200])
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / "empty.png")
    with pytest.raises(DataError, match=r"image 10 \(a.png\): the image .*first of 3 problems"):
        CocoDataset(file, folder)
    dataset = CocoDataset(file, folder, skip_bad=True)
    assert dataset.image_ids == [13]
    assert dataset.coco_gt().getImgIds() == [13]
    assert "image 11 (b.png): the image is damaged or truncated" in caplog.text
    assert "annotation file has 16x16" in caplog.text


def test_images_above_the_limit_can_be_skipped(content, write_set, caplog):
    file, folder = write_set(content)
    with pytest.raises(DataError, match=r"image 10 \(a.png\): the image has more than 800"):
        CocoDataset(file, folder, image_options=ImageOptions(800))
    assert CocoDataset(file, folder, image_options=ImageOptions(800), skip_bad=True).image_ids == [
        11,
        12,
        13,
    ]
    assert "more than 800 pixels (40x30)" in caplog.text


def test_error_names_an_image_damaged_later(content, write_set):
    file, folder = write_set(content)
    dataset = CocoDataset(file, folder)
    (folder / "a.png").write_bytes((folder / "a.png").read_bytes()[:200])
    with pytest.raises(DataError, match=r"a.png: .*truncated.* \(image id 10\)"):
        dataset[0]


@pytest.mark.parametrize("box", [[0, 0, 40, 30], [-2, 0, 10, 10], [39.9, 0, 0.3, 5]])
def test_valid_boxes(box):
    assert box_problem(box, 30, 40) is None


@pytest.mark.parametrize(
    "segmentation",
    [
        [[1, 1, 5, 1, 5, 5]],
        [[40.5, 1, 42, 1, 41, 9], [1, 1, 5, 1, 5, 5]],
        {"size": [30, 40], "counts": [0, 1200]},
        {"size": [30, 40], "counts": "0`U1"},
    ],
)
def test_valid_segmentations(segmentation):
    assert segmentation_problem(segmentation, 30, 40) is None


@given(
    bitmap=st.lists(st.booleans(), min_size=63, max_size=63).filter(any),
)
def test_compressed_rles_are_checked(bitmap):
    rle = encode_bitmap(np.array(bitmap).reshape(9, 7))
    assert segmentation_problem(rle, 9, 7) is None
    damaged = {**rle, "counts": rle["counts"][:-1]}
    assert segmentation_problem(damaged, 9, 7) is not None


@pytest.mark.parametrize(
    ("box", "message"),
    [
        (
            [0.1, 0.2, 0.5, 0.5],
            "is inside the first pixel. Boxes are in pixels: multiply ",
        ),
        ([20, 10, 38, 25], r"exceeds .*\. If these are corners \[x1, y1, x2, y2\], convert"),
    ],
)
def test_hints_for_other_box_formats(box, message):
    assert re.search(message, str(box_problem(box, 30, 40)))


def test_small_boxes_elsewhere_are_valid():
    for box in ([1.5, 0, 0.5, 0.5], [0, 0, 1, 1], [0.5, 0.5, 2, 0.5]):
        assert box_problem(box, 30, 40) is None
    assert box_problem([0, 0, 0.5, 0.5], 1, 1) is None
    assert "corners" not in str(box_problem([38, 10, 20, 12], 30, 40))
