"""Building datasets from names in the config, and invalid entries."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from detlite.config import ConfigError
from detlite.data.datasets.build import (
    build_dataset,
    build_test_datasets,
    build_train_dataset,
    check_num_classes,
    findings_of,
)
from detlite.data.datasets.catalog import DATASETS
from detlite.data.images import checks
from detlite.files.errors import DataError


def test_build_dataset_by_name(content, write_set, small_cfg):
    write_set(content)
    dataset = build_dataset(small_cfg(), "small", train=True)
    assert dataset.name == "small"
    assert len(dataset) == 2
    assert "masks" in dataset[0][1]
    assert len(build_dataset(small_cfg(), "small", train=False)) == 4
    boxes_only = build_dataset(small_cfg("MODEL.MASK_ON", False), "small", train=True)
    assert "masks" not in boxes_only[0][1]


def test_options_of_the_config(content, write_set, small_cfg, monkeypatch):
    file, folder = write_set(content)
    monkeypatch.setenv("SOME_FOLDER", str(file.parents[1]))
    cfg = small_cfg("DATASETS.ROOT", "${SOME_FOLDER:-nowhere}")
    everything = build_dataset(cfg, "small", train=False)
    assert len(everything) == 4
    assert "every detection there is wrong" in findings_of([everything])
    labeled = build_dataset(small_cfg("TEST.UNLABELED_IMAGES", "skip"), "small", train=False)
    assert labeled.image_ids == [10, 11, 13]
    assert "They are not evaluated" in findings_of([labeled])
    with pytest.raises(DataError, match="more than 900 pixels"):
        build_dataset(small_cfg("DATASETS.MAX_PIXELS", 900), "small", train=True)
    Image.fromarray(np.full((30, 40), 4095, np.uint16)).save(folder / "a.png")
    dataset = build_dataset(small_cfg("INPUT.IMAGE_BITS", 12), "small", train=True)
    assert (dataset[0][0] == 255).all()
    content["annotations"][0]["bbox"][0] = 50
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match="annotation 1 "):
        build_dataset(small_cfg(), "small", train=True)
    cfg = small_cfg("DATASETS.ON_BAD_ANNOTATION", "skip")
    assert len(build_dataset(cfg, "small", train=True)[0][1]["boxes"]) == 1
    file.write_text(json.dumps(content | {"annotations": []}))
    cfg = small_cfg("DATASETS.BACKGROUND_IMAGES", True)
    assert len(build_dataset(cfg, "small", train=True)) == 4
    with pytest.raises(DataError, match=r"DATASETS\.TRAIN small: no image has an annotation"):
        build_train_dataset(cfg)
    with pytest.raises(ConfigError, match=r"DATASETS\.TRAIN is empty"):
        build_train_dataset(small_cfg("DATASETS.TRAIN", ()))


@pytest.mark.parametrize(("size", "warns"), [(15, True), (20, False), (48, False), (49, True)])
def test_a_test_size_far_from_the_training_sizes(content, write_set, small_cfg, size, warns):
    write_set(content)
    cfg = small_cfg("INPUT.MIN_SIZE_TEST", size)  # trained at 24 and 32
    text = findings_of([build_dataset(cfg, "small", train=False)])
    assert (f"INPUT.MIN_SIZE_TEST is {size}" in text) == warns
    assert "at another scale" not in findings_of([build_dataset(cfg, "small", train=True)])


@pytest.mark.parametrize(("name", "as_rle"), [("detectron2", False), ("torchvision", True)])
def test_mask_targets_follow_the_convention(content, write_set, small_cfg, name, as_rle):
    write_set(content)
    dataset = build_dataset(small_cfg("MODEL.CONVENTION", name), "small", train=True)
    assert (dataset[0][1]["masks"].frames[:, 0] > 0).tolist() == [as_rle] * 2
    override = ["MODEL.CONVENTION_OVERRIDE", ("mask_targets=soft",)]
    dataset = build_dataset(small_cfg("MODEL.CONVENTION", name, *override), "small", train=True)
    assert (dataset[0][1]["masks"].frames[:, 0] > 0).all()


def test_unknown_name_suggests_the_nearest(small_cfg):
    with pytest.raises(ConfigError, match=r"'smal'; did you mean 'small'\? .*small, other"):
        build_dataset(small_cfg(), "smal", train=True)
    with pytest.raises(ConfigError, match="'coco_2017_trian'; did you mean 'coco_2017_train'"):
        build_dataset(small_cfg(), "coco_2017_trian", train=True)
    with pytest.raises(ConfigError, match="the catalog is empty"):
        build_dataset(small_cfg("DATASETS.CATALOG", []), "small", train=True)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"images": "i"}, "DATASETS.CATALOG, a: 'annotations' is missing"),
        ({"annotations": 3, "images": "i"}, "'annotations' is 3, but must be a str"),
        ({"annotations": "a", "images": "i", "imges": "i"}, "'imges'; did you mean 'images'"),
        ({"type": "cocoo", "annotations": "a", "images": "i"}, "did you mean 'coco'"),
        ({"type": "shapes", "path": "p", "split": "s", "seed": 1}, "'images' is missing"),
        ({"type": "shapes", "path": "p", "split": "s", "seed": 1, "images": 0}, "at least 1"),
        ({"type": "shapes", "path": "p", "split": "../s", "seed": 1, "images": 1}, "an identifier"),
    ],
)
def test_bad_entry(small_cfg, entry, message):
    cfg = small_cfg("DATASETS.CATALOG", [{"name": "a", **entry}])
    with pytest.raises(ConfigError, match=message):
        build_dataset(cfg, "a", train=True)
    cfg = small_cfg("DATASETS.CATALOG", [{"name": "a", **entry}] * 2)
    with pytest.raises(ConfigError, match="2 entries have the name 'a'"):
        build_dataset(cfg, "a", train=True)


def test_missing_annotation_file_names_the_expected_paths(small_cfg, tmp_path):
    with pytest.raises(DataError) as error:
        build_dataset(small_cfg(), "coco_2014_minival", train=False)
    file = tmp_path / "coco" / "annotations" / "instances_minival2014.json"
    assert str(error.value).startswith(
        f"dataset coco_2014_minival: the annotation file {file} does not"
    )
    assert f"expected in {tmp_path / 'coco' / 'val2014'}" in str(error.value)
    assert f"DATASETS.ROOT ({tmp_path})" in str(error.value)


def test_custom_type_of_dataset(content, write_set, small_cfg, monkeypatch):
    file, folder = write_set(content)
    monkeypatch.setattr(DATASETS, "_builders", dict(DATASETS._builders))
    seen = []

    @DATASETS.register("mine")
    def mine(entry, root):
        seen.append((entry["color"], root))
        return file, folder

    entry = {"name": "a", "type": "mine", "color": "red"}
    cfg = small_cfg("DATASETS.CATALOG", [entry])
    assert len(build_dataset(cfg, "a", train=True)) == 2
    assert seen == [("red", file.parents[1])]


def test_concatenated_sets_match_by_name(content, write_set, small_cfg, tmp_path):
    write_set(content)
    first, second = content["categories"]
    first["name"], second["name"] = second["name"].upper(), first["name"]
    write_set(content, "other")
    dataset = build_train_dataset(small_cfg("DATASETS.TRAIN", ("small", "other")))
    assert (dataset.name, len(dataset)) == ("small + other", 4)
    assert dataset.aspect_ratios == [40 / 30, 0.5] * 2
    targets = [dataset[number][1] for number in range(4)]
    assert [target["image_id"] for target in targets] == [10, 11, 10, 11]
    labels = [target["labels"] for target in targets]
    assert torch.equal(torch.cat(labels[:2]), 3 - torch.cat(labels[2:]))
    assert [row["id"] for row in dataset.categories] == [3, 7]
    assert dataset.parts[0].categories == dataset.parts[1].categories
    first["name"] = "wolf"
    (tmp_path / "other/annotations.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"other.*annotations.json: the categories differ .*wolf\."):
        build_train_dataset(small_cfg("DATASETS.TRAIN", ("small", "other")))


def test_number_of_classes_must_match_the_data(content, write_set, small_cfg, monkeypatch):
    write_set(content)
    cfg = small_cfg("MODEL.ROI_BOX_HEAD.NUM_CLASSES", 81)
    message = r"NUM_CLASSES is 81, but the dataset small has 2 categories: set it to 3"
    with pytest.raises(ConfigError, match=message):
        check_num_classes(cfg, build_dataset(cfg, "small", train=False))
    monkeypatch.setattr(checks, "check_images", None)  # it comes before all images are read
    with pytest.raises(ConfigError, match=message):
        build_train_dataset(cfg)


def test_images_that_are_trained_and_tested_on(content, write_set, small_cfg, tmp_path):
    write_set(content)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/images").symlink_to(tmp_path / "small/images")
    kept = {"images": content["images"][:1], "annotations": content["annotations"][:1]}
    (tmp_path / "other/annotations.json").write_text(json.dumps(content | kept))
    cfg = small_cfg("DATASETS.TEST", ("small", "other"))
    parts, (same, part) = build_train_dataset(cfg).parts, build_test_datasets(cfg)
    assert "also trained on: 2 of 4 images, for example a.png" in findings_of([same], parts)
    assert "also trained on: 1 of 1 image, for example a.png" in findings_of([part], parts)
    assert "also trained on" not in findings_of([*parts, same])
    assert "also trained on" not in findings_of(parts, parts)
    (tmp_path / "small/images/new.png").write_bytes(b"")
    assert "no annotation file in use lists: 1 image" in findings_of([*parts, part], parts)
    assert "no annotation file in use lists" not in findings_of([same])  # training images unknown
