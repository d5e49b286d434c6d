"""Cityscapes as a dataset in COCO's format."""

import json

import numpy as np
import pytest
from PIL import Image

from detlite.config import ConfigError
from detlite.data.datasets.build import build_dataset
from detlite.data.datasets.ground_truth import build_coco_gt
from detlite.files.errors import DataError
from detlite.structures.masks.formats import to_bitmap


@pytest.fixture
def city(tmp_path):
    """Write two cities with one 24 x 40 image each in val; return the folder."""
    folder = tmp_path / "cityscapes"
    for number, name in enumerate(["bonn", "ulm"]):
        stem = f"{name}_000000_{number:06d}"
        images, truth = folder / "leftImg8bit/val" / name, folder / "gtFine/val" / name
        images.mkdir(parents=True)
        truth.mkdir(parents=True)
        Image.fromarray(np.zeros((24, 40, 3), np.uint8)).save(images / f"{stem}_leftImg8bit.png")
        ids = np.full((24, 40), 7, np.uint16)
        ids[2:12, 4:20] = 26000
        ids[6:10, 10:30] = 26001  # in front of the first
        ids[14:20, 0:8] = 26  # a group
        ids[14:20, 10:16] = 29000
        ids[14:20, 20:25] = 29  # a group of a void label
        ids[21:24] = 1  # ego vehicle
        Image.fromarray(ids).save(truth / f"{stem}_gtFine_instanceIds.png")
        objects = [
            {"label": label, "polygon": [[x1, y1], [x2, y1], [x2, y2], [x1, y2]]}
            for label, x1, y1, x2, y2 in (
                ("road", 0, 0, 39, 23), ("car", 4, 2, 20, 12), ("car", 10, 6, 30, 10),
                ("cargroup", 0, 14, 8, 20), ("caravan", 10, 14, 16, 20),
                ("caravangroup", 20, 14, 24, 19), ("static", 0, 14, 4, 19),
                ("license plate", 0, 14, 1, 15), ("static", 30, 0, 34, 4), ("sky", 30, 0, 34, 4),
                ("ego vehicle", 0, 21, 39, 23),
            )
        ]  # fmt: skip
        objects.append({"label": "person", "polygon": [[1, 1], [2, 2]]})
        objects.append({"label": "bus", "deleted": 1, "polygon": [[0, 0], [9, 0], [9, 9]]})
        content = {"imgHeight": 24, "imgWidth": 40, "objects": objects}
        (truth / f"{stem}_gtFine_polygons.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("name", "categories", "names", "first_area"),
    [
        ("cityscapes_fine_instance_seg_val", 8, ["car", "car"], 160 - 40),
        ("cityscapes_mask_instance_val", 10, ["car", "car", "caravan"], 160 - 40),
        ("cityscapes_poly_instance_val", 10, ["car", "car", "caravan"], 160),
    ],
)
def test_builtin_names(city, small_cfg, name, categories, names, first_area):
    dataset = build_dataset(small_cfg(), name, train=True)
    assert len(dataset.categories) == categories
    _, target = dataset[1]
    boxes = target["boxes"].tolist()
    assert [4, 2, 20, 12] in boxes
    assert [10, 6, 30, 10] in boxes
    labels = target["labels"].tolist()
    assert sorted(dataset.categories[label - 1]["name"] for label in labels) == names
    first = target["masks"].bitmaps(*target["size"])[boxes.index([4, 2, 20, 12])]
    assert first.sum() == first_area


def test_groups_are_crowds_in_evaluation(city, small_cfg):
    for form, caravans in (("poly", [20, 14, 4, 5]), ("mask", [20, 14, 5, 6])):
        dataset = build_dataset(small_cfg(), f"cityscapes_{form}_instance_val", train=False)
        crowds = [
            row["bbox"] for row in build_coco_gt(dataset).dataset["annotations"] if row["iscrowd"]
        ]
        assert crowds == [[0, 14, 8, 6], caravans] * 2


def test_void_pixels_of_images(city, small_cfg):
    expected = np.zeros((24, 40), bool)
    expected[14:20, 20:25] = expected[21:24] = True
    for form in ("mask", "poly"):
        if form == "poly":  # in front of the group of cars
            expected[14:20, 0:5] = True
        dataset = build_dataset(small_cfg(), f"cityscapes_{form}_instance_val", train=False)
        for image in build_coco_gt(dataset).dataset["images"]:
            assert (to_bitmap(image["void"], 24, 40) == expected).all()


def test_unlabeled_pixels_are_void(city, small_cfg):
    for file in city.glob("gtFine/val/*/*.json"):
        car = {"label": "car", "polygon": [[4, 2], [19, 2], [19, 11], [4, 11]]}
        file.write_text(json.dumps({"objects": [car]}))
    dataset = build_dataset(small_cfg(), "cityscapes_poly_instance_val", train=False)
    void = to_bitmap(build_coco_gt(dataset).dataset["images"][0]["void"], 24, 40)
    assert void.sum() == 24 * 40 - 160
    assert not void[2:12, 4:20].any()


def test_limit_on_the_number_of_images(city, small_cfg):
    entry = {"name": "one", "type": "cityscapes", "folder": "cityscapes", "split": "val",
             "form": "mask", "most": 1, "all": False}  # fmt: skip
    assert len(build_dataset(small_cfg("DATASETS.CATALOG", [entry]), "one", train=False)) == 1


@pytest.mark.parametrize("missing", ["leftImg8bit/val", "gtFine/val"])
def test_error_names_a_missing_folder(city, small_cfg, missing):
    (city / missing).rename(city / "elsewhere")
    with pytest.raises(DataError, match=f"instance_val: .*{missing} does not exist. Put it there"):
        build_dataset(small_cfg(), "cityscapes_mask_instance_val", train=True)


def test_error_names_an_unreadable_file(city, small_cfg):
    truth = city / "gtFine/val/bonn"
    (truth / "bonn_000000_000000_gtFine_polygons.json").write_text("{}")
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(
        truth / "bonn_000000_000000_gtFine_instanceIds.png"
    )
    for form, message in (("poly", r"polygons\.json.*objects"), ("mask", r"Ids\.png.*its size is")):
        with pytest.raises(DataError, match=message):
            build_dataset(small_cfg(), f"cityscapes_{form}_instance_val", train=True)
    (truth / "bonn_000000_000000_gtFine_polygons.json").unlink()
    with pytest.raises(DataError, match=r"polygons\.json: cannot be read"):
        build_dataset(small_cfg(), "cityscapes_poly_instance_val", train=True)


def test_no_images_and_unknown_form(city, small_cfg):
    for file in city.glob("leftImg8bit/val/*/*.png"):
        file.unlink()
    with pytest.raises(DataError, match="there are no images <city>"):
        build_dataset(small_cfg(), "cityscapes_mask_instance_val", train=True)
    entry = {"name": "a", "type": "cityscapes", "folder": "c", "split": "val", "form": "png",
             "most": 0, "all": True}  # fmt: skip
    with pytest.raises(ConfigError, match="form is 'png', but must be poly or mask"):
        build_dataset(small_cfg("DATASETS.CATALOG", [entry]), "a", train=True)
