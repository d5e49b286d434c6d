"""Test reading PASCAL VOC's XML files in any folder, and in VOC's own layout."""

import json
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from detlite.apps.dataset_formats import find_sets
from detlite.apps.dataset_formats.labeled_dataset import to_coco
from detlite.apps.dataset_formats.voc_xml import _labels
from detlite.config import load_config
from detlite.data.datasets.build import build_dataset
from detlite.data.datasets.ground_truth import build_coco_gt
from detlite.files.errors import DataError
from detlite.structures.masks.formats import to_bitmap
from tests.apps.dataset_formats.reading import check_refused, read_as, read_set

OBJECT = (
    "<object><name>{}</name><difficult>{}</difficult><bndbox><xmin>{}</xmin><ymin>{}</ymin>"
    "<xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"
)


def xml(*objects, name="", size=(60, 40)):
    rows = "".join(OBJECT.format(*row) for row in objects)
    width, height = size
    return (
        f"<annotation><filename>{name}</filename><size><width>{width}</width>"
        f"<height>{height}</height></size>{rows}</annotation>"
    )


A_XML = xml(("cat", 1, 11, 2, 30, 12), name="C:\\x\\a.jpg")


@pytest.fixture
def voc(folder):
    return folder({
        **{f"JPEGImages/{name}.jpg": None for name in "abc"},
        "Annotations/b.xml": xml(("dog", 0, 1, 1, 10, 20), name="b.jpg"),
        "Annotations/a.xml": A_XML,
    })  # fmt: skip


def boxes(folder):
    return [row["bbox"] for row in to_coco(read_as("PASCAL VOC", folder)["train"])["annotations"]]


def test_pixels_are_counted_from_1(voc):
    (dataset,) = read_as("PASCAL VOC", voc).values()
    content = to_coco(dataset)
    assert dataset.image_folder == voc / "JPEGImages"
    assert [row["file_name"] for row in content["images"]] == ["a.jpg", "b.jpg"]  # c has no labels
    assert content["categories"] == [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    cat, dog = content["annotations"]
    assert (cat["bbox"], cat["category_id"], cat["iscrowd"]) == ([10, 1, 20, 11], 1, 1)
    assert (dog["bbox"], dog["category_id"], dog["iscrowd"]) == ([0, 0, 10, 20], 2, 0)


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        ([("dog", 0, 0, 1, 10, 20)], [[11, 2, 19, 10], [0, 1, 10, 19]]),  # a 0: from 0
        # Decimals are continuous coordinates in this file, and pixels count from 1 in the other.
        ([("dog", 0, 0.5, 1.0, 10, 20), ("dog", 0, 3, 4, 5, 6)],
         [[10, 1, 20, 11], [0.5, 1, 9.5, 19], [3, 4, 2, 2]]),
        # Decimals of other values do not count.
        ([("dog", 0, 3, 4, 5, "6</ymax><score>0.5</score><ymax>")],
         [[10, 1, 20, 11], [2, 3, 3, 3]]),
    ],
)  # fmt: skip
def test_first_pixel(voc, text, objects, expected):
    content = xml(*objects, name="b.jpg").replace("<ymax></ymax>", "")
    text(voc / "Annotations/b.xml", content)
    assert boxes(voc) == expected


def test_lists_define_the_splits(voc, folder, text):
    folder({
        "ImageSets/Main/Train.txt": "a\n",  # CVAT keeps the names of subsets
        "ImageSets/Main/val.txt": "b\n",
        "ImageSets/Main/cat_val.txt": "b -1\n",
        "Annotations/c.xml": xml(("dog", 0, 1, 1, 10, 20), name="c.jpg"),
    })  # fmt: skip
    sets = read_as("PASCAL VOC", voc)
    (unlisted,) = (one for one in sets["train"].findings if "do not name" in one.what)
    assert (unlisted.count, unlisted.example) == (1, str(voc / "JPEGImages/c.jpg"))
    contents = [to_coco(sets[split]) for split in ("train", "val")]
    assert [content["images"][0]["file_name"] for content in contents] == ["a.jpg", "b.jpg"]
    assert contents[0]["categories"] == contents[1]["categories"]
    text(voc / "ImageSets/Main/val.txt", "z\n")
    check_refused(voc, r"val\.txt: lists z, but no file has this name\. Fix")
    assert len(read_set(voc, skip_bad=True).images) == 1


@pytest.mark.parametrize("corners", [(1, 1, 20, 30), (20, 1, 1, 30)])
def test_files_without_size_next_to_images(folder, corners):
    """Any two opposite corners are read."""
    labels = xml(("cat", 0, *corners), size=(0, 0))
    assert boxes(folder({"x.png": None, "x.xml": labels})) == [[0, 0, 20, 30]]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("<annotation>", "cannot be read as XML: no element found: line 1"),
        (
            xml(("cat", 0, 5, 0, 5, 9)),
            r"object 1 \(cat\): bbox .* has no positive width and height",
        ),
        (xml(("cat", 0, "a", 5, 3, 9)), r"object 1 \(cat\): bndbox/xmin is 'a', not a number"),
        (xml().replace("</annotation>", "<object/></annotation>"), "object 1: an element <object>"),
        (A_XML.replace("<difficult>1<", "<difficult>maybe<"), r"\(cat\): difficult is 'maybe', "),
        (A_XML.replace("<width>60<", "<width>wide<"), "size/width is 'wide', not a number"),
        (
            xml(name="b.jpg", size=(9, 9)),
            r"its size is 9x9 \(width x height\), but .*\.jpg is 60x4",
        ),
    ],
)
def test_invalid_file(voc, text, content, problem):
    file = text(voc / "Annotations/a.xml", content)
    check_refused(voc, problem, file)


@pytest.mark.parametrize(
    ("old", "new", "crowd"),
    [
        ("<difficult>1</difficult>", "<difficult/>", 0),
        ("<difficult>1</difficult>", "", 0),
        ("<difficult>1</difficult>", "<difficult>Unspecified</difficult>", 0),
        ("<difficult>1</difficult>", "<difficult> true </difficult>", 1),
        ("<width>60</width><height>40</height>", "<width>60.0</width><height>40.0</height>", 1),
        ("<width>60</width><height>40</height>", "<width/><height/><depth/>", 1),
        ("<size><width>60</width><height>40</height></size>", "", 1),
        ("<annotation>", '<annotation verified="yes">', 1),
        ("C:\\x\\a.jpg", "/data/photos/a.png", 1),
    ],
)
def test_variants_of_xml(voc, text, old, new, crowd):
    assert old in A_XML
    text(voc / "Annotations/a.xml", A_XML.replace(old, new))
    cat = to_coco(read_as("PASCAL VOC", voc)["train"])["annotations"][0]
    assert (cat["bbox"], cat["iscrowd"]) == ([10, 1, 20, 11], crowd)


def test_masks_of_objects(voc, image, text):
    values = np.zeros((40, 60), np.uint8)
    values[2:11, 11:29], values[1, 11:29] = 1, 255
    values[30:35, 40:50] = 2
    (voc / "SegmentationObject").mkdir()
    Image.fromarray(values).save(voc / "SegmentationObject/a.png")
    text(voc / "Annotations/a.xml", xml(("cat", 1, 11, 2, 30, 12), name="a.png"))
    dataset = read_as("PASCAL VOC", voc)["train"]
    cat, dog = to_coco(dataset)["annotations"]
    assert cat["bbox"] == [10, 1, 20, 11]
    assert (to_bitmap(cat["segmentation"], 40, 60) == (values == 1)).all()
    assert "segmentation" not in dog
    difficult, finding, unlabeled = dataset.findings
    assert (difficult.what, difficult.count) == ("difficult objects", 1)
    assert (finding.what, finding.count) == ("masks that fit no box", 1)
    assert (unlabeled.what, unlabeled.count) == ("images without labels", 1)
    assert unlabeled.example.endswith("c.jpg")
    bad = xml(("cat", 1, 11, 2, 30, 12), ("cat", 0, "x", 2, 30, 12), name="a.png")
    text(voc / "Annotations/a.xml", bad)
    dataset = read_set(voc, skip_bad=True)
    assert dataset.images[0].objects[0].segmentation == cat["segmentation"]


CAT = OBJECT.format("cat", 0, 20, 15, "40.0", 25)
ROLABELIMG = "<object><name>cat</name><robndbox>{}</robndbox></object>"
CORNERS = (35.0, 10, 35, 30, 25, 30, 25, 10)
ROTATION = "<attribute><name>rotation</name><value>90.0</value></attribute>"
ANGLE = "<cx>30</cx><cy>20.0</cy><w>20</w><h>10</h><angle>1.570796326794</angle>"
POINTS = "".join(f"<c{k}>{value}</c{k}>" for k, value in enumerate(CORNERS))


@pytest.mark.parametrize(
    "drawn",
    [
        ROLABELIMG.format(ANGLE),
        ROLABELIMG.format(POINTS),  # DIOR-R
        CAT.replace("</object>", f"{ROTATION}</object>"),  # CVAT
        CAT.replace("</object>", f"<attributes>{ROTATION}</attributes></object>"),
        CAT.replace("</object>", f"<polygon>{POINTS}</polygon></object>"),  # Roboflow
    ],
)
def test_rotated_boxes_and_polygons(voc, text, drawn):
    content = xml(name="a.jpg").replace("</annotation>", f"{drawn}</annotation>")
    text(voc / "Annotations/a.xml", content)
    cat = to_coco(read_as("PASCAL VOC", voc)["train"])["annotations"][0]
    assert cat["bbox"] == pytest.approx([25, 10, 10, 20])
    assert cat["segmentation"] == [pytest.approx(CORNERS)]


def test_nested_objects_are_read_in_linear_time():
    """Visiting everything in each of n nested objects takes n * n / 2 visits: minutes here."""
    box = OBJECT.format("cat", 0, 1, 1, 10, 20).removesuffix("</object>")
    count = 10_000
    root = ET.fromstring(f"<annotation>{box * count}{'</object>' * count}</annotation>")
    start = time.process_time()
    assert len(_labels(Path("a.xml"), root, 1).shapes) == count
    assert time.process_time() - start < 3


@pytest.fixture
def devkit(folder, image):
    """Write VOC2007 with two images in train, one of them also in val; return the folder."""
    objects = {
        "000005": [("cat", 0, 1, 1, 10, 20), ("tvmonitor", 1, 5, 6, 7, 8)],
        "2008_000007": [("aeroplane", 0, 11, 12, 30, 24)],
    }
    root = folder({
        **{f"voc/VOC2007/Annotations/{stem}.xml": xml(*rows, size=(30, 24))
           for stem, rows in objects.items()},
        "voc/VOC2007/ImageSets/Main/train.txt": "000005\n2008_000007\n",
        "voc/VOC2007/ImageSets/Main/val.txt": "2008_000007\n",
    })  # fmt: skip
    for stem in objects:
        image(root / f"voc/VOC2007/JPEGImages/{stem}.jpg", 24, 30)
    return root / "voc/VOC2007"


def load(tmp_path, name="voc_2007_train", train=True):
    cfg = load_config(None, ["DATASETS.ROOT", str(tmp_path), "MODEL.MASK_ON", False])
    return build_dataset(cfg, name, train=train)


def test_catalog_entries(devkit, tmp_path):
    dataset = load(tmp_path)
    assert dataset.image_ids == [5, 2008000007]
    assert [row["name"] for row in dataset.categories][::19] == ["aeroplane", "tvmonitor"]
    image, target = dataset[0]
    assert image.shape == (3, 24, 30)
    assert target["boxes"].tolist() == [[0, 0, 10, 20]]  # the difficult one is skipped
    assert target["labels"].tolist() == [8]
    assert dataset[1][1]["boxes"].tolist() == [[10, 11, 30, 24]]
    assert load(tmp_path, "voc_2007_val").image_ids == [2008000007]
    truth = build_coco_gt(load(tmp_path, train=False))
    assert [row["iscrowd"] for row in truth.dataset["annotations"]] == [0, 1, 0]
    assert len(truth.dataset["categories"]) == 20
    file = tmp_path / "converted" / "voc_2007_train.json"  # converted once
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"images": content["images"][:1], "annotations": []}))
    with pytest.raises(DataError, match=r"voc_2007_train\.json"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("JPEGImages", None, "dataset voc_2007_train: .*JPEGImages does not exist"),
        ("ImageSets/Main/train.txt", None, "dataset voc_2007_train: .*train.txt does not exist"),
        ("Annotations/000005.xml", None, "dataset voc_2007_train: .*5.xml does not exist"),
        ("Annotations/000005.xml", "<annotation/>", r"000005\.xml: has no size of the image"),
        ("Annotations/000005.xml", xml(("unicorn", 0, 1, 1, 2, 2)), "'unicorn' is not a category"),
        (
            "Annotations/000005.xml",
            xml().replace("</ann", "<object><name>cat</name></object></ann"),
            r"000005\.xml: .*has no bndbox/xmin",
        ),
        ("../../converted", "a file", r"converted.*json: cannot be written"),
    ],
)
def test_invalid_files_of_a_catalog_entry(devkit, tmp_path, file, content, message):
    if content is None:
        (devkit / file).rename(devkit / "elsewhere")
    else:
        (devkit / file).write_text(content)
    with pytest.raises(DataError, match=message):
        load(tmp_path)
    assert not (tmp_path / "converted").is_dir()


def test_findings_are_counted_by_split(folder):
    labels = {n: xml(("cat", int(n < 5), 11, 2, 30, 12), name=f"{n}.jpg") for n in range(10)}
    files = {f"{n}.jpg": None for n in labels} | {f"{n}.xml": text for n, text in labels.items()}
    sets, _ = find_sets(folder(files))
    for source in sets.values():
        content = json.loads(source.annotations.read_text())
        difficult = sum(row["iscrowd"] for row in content["annotations"])
        counts = [row["count"] for row in content.get("findings", ())]
        assert counts == [difficult] * (difficult > 0)
    assert len(sets) == 2
