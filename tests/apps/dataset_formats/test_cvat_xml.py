"""Test reading CVAT's own XML."""

import pytest

from detlite.apps.dataset_formats.find_annotations import read_folder
from detlite.apps.dataset_formats.labeled_dataset import Conversion, to_coco
from detlite.data.images.pixels import ImageOptions
from detlite.structures.masks.formats import to_bitmap
from tests.apps.dataset_formats.reading import check_refused, read_set

IMAGES = """<?xml version="1.0"?><annotations><version>1.1</version><meta/>
<image id="0" name="sub/a.jpg" width="60" height="40" subset="Train">
  <box label="cat" xtl="1.5" ytl="2" xbr="11" ybr="8.25"><attribute name="x">1</attribute></box>
  <polygon label="dog" points="20,10;30,10;30,20" group_id="4"/>
  <polygon label="dog" points="40,10;50,10;50,20" group_id="4"/>
  <mask label="cat" rle="1,2,3" left="50" top="30" width="3" height="2"/>
  <ellipse label="cat" cx="30" cy="30" rx="6" ry="3"/>
  <skeleton label="hand"><points label="tip" outside="0" occluded="1" points="5,20"/>
    <points label="palm" outside="0" occluded="0" points="9,30"/>
    <points label="wrist" outside="1" points="0,0"/></skeleton>
  <tag label="indoor"/>
</image>
<image id="1" name="sub/b.jpg" width="60" height="40" subset="Validation"/>
</annotations>"""
VIDEO = """<annotations><meta><task><original_size><width>60</width><height>40</height>
</original_size></task></meta><track id="0" label="car">
<box frame="0" outside="0" xtl="1" ytl="1" xbr="5" ybr="5"/>
<box frame="1" outside="0" xtl="2" ytl="1" xbr="6" ybr="5"/>
<box frame="2" outside="1" xtl="2" ytl="1" xbr="6" ybr="5"/></track></annotations>"""


def test_images(tmp_path, image, text):
    for name in "ab":
        image(tmp_path / f"images/sub/{name}.jpg")
    text(tmp_path / "annotations.xml", IMAGES)
    name, sets = read_folder(tmp_path)
    assert name == "CVAT"
    assert {split: [i.file.name for i in one.images] for split, one in sets.items()} == {
        "train": ["a.jpg"], "val": ["b.jpg"],
    }  # fmt: skip
    content = to_coco(sets["train"])
    categories = {row["id"]: row["name"] for row in content["categories"]}
    assert list(categories.values()) == ["cat", "dog", "hand"]
    box, dog, mask, ellipse, hand = content["annotations"]
    assert box["bbox"] == [1.5, 2, 9.5, 6.25]
    assert "segmentation" not in box
    assert dog["segmentation"] == [[20, 10, 30, 10, 30, 20], [40, 10, 50, 10, 50, 20]]
    assert to_bitmap(mask["segmentation"], 40, 60)[30:32, 50:53].tolist() == [[0, 1, 1], [0, 0, 0]]
    assert ellipse["bbox"] == [24, 27, 12, 6]
    assert hand["bbox"] == [5, 20, 4, 10]
    assert content["categories"][2]["keypoints"] == ["tip", "palm"]
    assert hand["keypoints"] == [5, 20, 1, 9, 30, 2]


def test_only_bad_frames_and_images_are_skipped(tmp_path, image, text):
    for number in range(3):
        image(tmp_path / f"images/frame_{number:06d}.png")
    content = VIDEO.replace('<box frame="1"', "<box").replace("</track>", "</track><image/>")
    text(tmp_path / "annotations.xml", content.replace("<annotations>", '<annotations count="1">'))
    check_refused(tmp_path, r"xml: image 1: is not .*'name'.*xml: track 1: .*'frame'")
    images = read_set(tmp_path, skip_bad=True).images
    assert [i.file.stem for i in images] == ["frame_000000"]


def test_frames_of_a_video(tmp_path, image, text):
    for number in range(3):
        image(tmp_path / f"images/frame_{number:06d}.png")
    text(tmp_path / "annotations.xml", VIDEO)
    images = read_set(tmp_path).images
    assert [(i.file.stem, i.objects[0].box[0]) for i in images] == [
        ("frame_000000", 1), ("frame_000001", 2),
    ]  # fmt: skip


def test_shapes_that_are_no_objects(tmp_path, image, text):
    image(tmp_path / "images/sub/a.jpg")
    image(tmp_path / "images/sub/b.jpg")
    line = '<polyline label="road" points="1,1;5,5"/><box label="cat" xtl="1"/>'
    bad = f'{line}<polyline label="road" points="1,x"/>'
    text(tmp_path / "x.xml", IMAGES.replace('<tag label="indoor"/>', bad))
    check_refused(tmp_path, r"object 8 \(cat\): is not complete \(KeyError\('ytl'\)\)")
    conversion = Conversion(skip_bad=True)
    image_a = read_folder(tmp_path, conversion)[1]["train"].images[0]
    assert len([one for one in image_a.objects if not one.ignored]) == 5
    assert len(conversion.bad) == 3
    text(tmp_path / "x.xml", IMAGES.replace('<tag label="indoor"/>', line.partition("<box")[0]))
    check_refused(tmp_path, r"object 7 \(road\): a shape of type polyline is not an")
    text(tmp_path / "x.xml", "<annotations><image>")
    check_refused(tmp_path, r"x\.xml: cannot be read as XML")


@pytest.mark.parametrize(
    ("runs", "width", "problem"),
    [("1,2", 3, "its runs have 3 pixels, but it has 3x2"),
     ("0,40000000000", 20000000000, "its mask has 20000000000x2 pixels, which no image can have")],
)  # fmt: skip
def test_masks_of_wrong_sizes(tmp_path, image, text, runs, width, problem):
    for name in "ab":
        image(tmp_path / f"images/sub/{name}.jpg")
    mask = f'rle="{runs}" left="50" top="30" width="{width}"'
    text(tmp_path / "x.xml", IMAGES.replace('rle="1,2,3" left="50" top="30" width="3"', mask))
    check_refused(tmp_path, f"object 4 .*{problem}")


def test_the_masks_of_an_image_are_bounded_together(tmp_path, image, text, monkeypatch):
    options = ImageOptions(max_pixels=2400)
    monkeypatch.setattr("detlite.apps.dataset_formats.shapes.DEFAULT_OPTIONS", options)
    for name in "ab":
        image(tmp_path / f"images/sub/{name}.jpg")
    mask = '<mask label="cat" rle="0,2400" left="0" top="0" width="60" height="40"/>'
    content = IMAGES.replace('<tag label="indoor"/>', 9 * mask)
    text(tmp_path / "x.xml", content)
    assert len(read_set(tmp_path).images[0].objects) == 14
    text(tmp_path / "x.xml", content.replace(mask, 2 * mask, 1))
    check_refused(tmp_path, "object 16 .*the masks of its image have together more than 10 times")


def test_images_of_a_project_are_in_folders_of_subsets(tmp_path, image, text):
    files = [image(tmp_path / f"images/{subset}/a.jpg") for subset in ("Train", "Validation")]
    text(tmp_path / "annotations.xml", IMAGES.replace("sub/a.jpg", "a.jpg").replace("sub/b", "a"))
    sets = read_folder(tmp_path)[1]
    assert [sets[split].images[0].file for split in ("train", "val")] == files
