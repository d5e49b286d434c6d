"""PASCAL VOC as a dataset in COCO's format."""

import json

import numpy as np
import pytest
from PIL import Image

from detlite.data.datasets.build import build_dataset
from detlite.data.errors import DataError

OBJECT = (
    "<object><name>{}</name><difficult>{}</difficult><bndbox><xmin>{}</xmin><ymin>{}</ymin>"
    "<xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"
)


@pytest.fixture
def voc(tmp_path):
    """Write VOC2007 with two images in train, one of them also in val; return the folder."""
    folder = tmp_path / "voc" / "VOC2007"
    for part in ("ImageSets/Main", "Annotations", "JPEGImages"):
        (folder / part).mkdir(parents=True)
    objects = {
        "000005": [("cat", 0, 1, 1, 10, 20), ("tvmonitor", 1, 5, 6, 7, 8)],
        "2008_000007": [("aeroplane", 0, 11, 12, 30, 24)],
    }
    for stem, rows in objects.items():
        Image.fromarray(np.zeros((24, 30, 3), np.uint8)).save(folder / f"JPEGImages/{stem}.jpg")
        text = "".join(OBJECT.format(*row) for row in rows)
        size = "<size><width>30</width><height>24</height><depth>3</depth></size>"
        xml = f"<annotation>{size}{text}</annotation>"
        (folder / f"Annotations/{stem}.xml").write_text(xml)
    (folder / "ImageSets/Main/train.txt").write_text("000005\n2008_000007\n")
    (folder / "ImageSets/Main/val.txt").write_text("2008_000007\n")
    return folder


def load(small_cfg, name="voc_2007_train", train=True):
    return build_dataset(small_cfg("MODEL.MASK_ON", False), name, train=train)


def test_boxes_labels_and_ids(voc, small_cfg, tmp_path):
    dataset = load(small_cfg)
    assert dataset.image_ids == [5, 2008000007]
    assert [row["name"] for row in dataset.categories][::19] == ["aeroplane", "tvmonitor"]
    image, target = dataset[0]
    assert image.shape == (3, 24, 30)
    assert target["boxes"].tolist() == [[0, 0, 10, 20]]  # the difficult one is skipped
    assert target["labels"].tolist() == [8]
    assert dataset[1][1]["boxes"].tolist() == [[10, 11, 30, 24]]
    assert load(small_cfg, "voc_2007_val").image_ids == [2008000007]


def test_difficult_objects_are_crowds_in_evaluation(voc, small_cfg):
    truth = load(small_cfg, train=False).coco_gt()
    assert [row["iscrowd"] for row in truth.dataset["annotations"]] == [0, 1, 0]
    assert len(truth.dataset["categories"]) == 20


def test_conversion_happens_once(voc, small_cfg, tmp_path):
    load(small_cfg)
    file = tmp_path / "converted" / "voc_2007_train.json"
    content = json.loads(file.read_text())
    content["images"] = content["images"][:1]
    content["annotations"] = content["annotations"][:2]
    file.write_text(json.dumps(content))
    assert len(load(small_cfg)) == 1
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize(
    "missing",
    ["JPEGImages", "ImageSets/Main/train.txt", "Annotations/000005.xml"],
)
def test_error_names_a_missing_file(voc, small_cfg, missing):
    (voc / missing).rename(voc / "elsewhere")
    with pytest.raises(DataError, match=f"dataset voc_2007_train: .*{missing} does not exist"):
        load(small_cfg)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<annotation>", "is not XML"),
        ("<annotation></annotation>", "has no size of the image"),
        ("<annotation><size><width>a</width><height>b</height></size></annotation>", "'b'"),
        (
            "<annotation><size><width>9</width><height>9</height></size>"
            + OBJECT.format("unicorn", 0, 1, 1, 2, 2)
            + "</annotation>",
            "'unicorn' is not a category",
        ),
        (
            "<annotation><size><width>9</width><height>9</height></size>"
            "<object><name>cat</name></object></annotation>",
            "<object> has no bndbox/xmin",
        ),
    ],
)
def test_error_names_an_invalid_xml_file(voc, small_cfg, tmp_path, text, message):
    (voc / "Annotations/000005.xml").write_text(text)
    with pytest.raises(DataError, match=rf"000005\.xml: .*{message}"):
        load(small_cfg)
    assert not (tmp_path / "converted").exists()


def test_folder_is_not_writable(voc, small_cfg, tmp_path):
    (tmp_path / "converted").write_text("a file")
    with pytest.raises(DataError, match=r"converted.*json: cannot be written"):
        load(small_cfg)
