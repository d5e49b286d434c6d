"""The dataset names of published configs and their folders under DATASETS.ROOT."""

import json

import pytest
from PIL import Image

from detlite.data.datasets.build import build_dataset, build_train_dataset
from detlite.data.datasets.builtin_entries import BUILTIN


@pytest.mark.parametrize(
    ("name", "annotations", "images"),
    [
        ("coco_2014_minival", "coco/annotations/instances_minival2014.json", "coco/val2014"),
        ("coco_2017_val_100", "coco/annotations/instances_val2017_100.json", "coco/val2017"),
        ("keypoints_coco_2017_train", "coco/annotations/person_keypoints_train2017.json",
         "coco/train2017"),
        ("voc_2012_train_cocostyle", "voc/VOC2012/Annotations/pascal_train2012.json",
         "voc/VOC2012/JPEGImages"),
        ("cityscapes_fine_instanceonly_seg_val_cocostyle",
         "cityscapes/annotations/instancesonly_filtered_gtFine_val.json", "cityscapes/images"),
    ],
)  # fmt: skip
def test_paths_of_builtin_names(name, annotations, images, content, write_set, small_cfg, tmp_path):
    file, folder = write_set(content)
    for target, source in ((tmp_path / annotations, file), (tmp_path / images, folder)):
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)
    dataset = build_dataset(small_cfg(), name, train=True)
    assert dataset.name == name
    assert len(dataset[0][1]["boxes"]) == 2


@pytest.mark.parametrize("name", ["lvis_v0.5_val_cocofied", "lvis_v1_val"])
def test_lvis_uses_the_images_of_coco(name, content, write_set, small_cfg, tmp_path):
    for number, image in enumerate(content["images"]):
        image["coco_url"] = f"http://images.example.org/val2017/{image['file_name']}"
        if number and "v0.5" in name:
            image["file_name"] = f"COCO_val2014_{number}.png"
        elif number:
            del image["file_name"]
    names = [image["coco_url"].rpartition("/")[2] for image in content["images"]]
    file, folder = write_set({**content, "images": []})
    file.write_text(json.dumps(content))
    (tmp_path / "lvis").mkdir()
    file.rename(tmp_path / "lvis" / f"{name}.json")
    (tmp_path / "coco").mkdir()
    for name_2017, image in zip(names, content["images"], strict=True):
        Image.new("RGB", (image["width"], image["height"])).save(folder / name_2017)
    folder.rename(tmp_path / "coco" / "val2017")
    dataset = build_dataset(small_cfg(), name, train=False)
    assert (dataset.name, dataset.kind) == (name, "lvis")
    assert [dataset.image_path(i).name for i in range(len(dataset))] == names
    assert dataset[0][0].shape == (3, 30, 40)


def test_catalog_entries_take_precedence(content, write_set, small_cfg):
    write_set(content)
    entry = {"name": "coco_2017_val", "annotations": "small/annotations.json"}
    catalog = [{**entry, "images": "small/images"}]
    names = ("DATASETS.TRAIN", ("coco_2017_val",), "DATASETS.CATALOG", catalog)
    assert len(build_train_dataset(small_cfg(*names))) == 2


def test_builtin_paths_are_inside_the_root():
    for entry in BUILTIN.values():
        paths = [value for value in entry.values() if isinstance(value, str)]
        assert not [path for path in paths if path.startswith("/") or ".." in path]
