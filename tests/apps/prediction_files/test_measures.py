"""Test measurements against scikit-image's values, and label images."""

import csv

import numpy as np
import pytest
import torch
from PIL import Image

from detlite.apps.prediction_files.measures import (
    add_measures,
    measure,
    perimeter,
    write_label_image,
)
from detlite.apps.prediction_files.writer import ModelInfo
from detlite.config import ConfigError
from detlite.structures.masks.formats import encode_bitmap
from tests.builders import write_predictions

# skimage.measure.regionprops_table of scikit-image 0.26 for `regions`.
EXPECTED = {
    "area": [100.0, 40.0, 21.0],
    "equivalent_diameter_area": [11.283791670955125, 7.136496464611085, 5.170882945826411],
    "perimeter": [52.284271247461895, 22.0, 17.071067811865476],
    "centroid-0": [9.0, 4.0, 15.333333333333334],
    "centroid-1": [8.0, 18.5, 15.666666666666666],
    "intensity_mean-0": [126.24, 112.575, 114.04761904761905],
    "intensity_mean-1": [135.67, 140.0, 113.42857142857143],
    "intensity_mean-2": [138.77, 118.9, 132.9047619047619],
}


def regions():
    """Return a ring, a rectangle at the border and a triangle, and an image uint8 [3, H, W]."""
    labels = np.zeros((20, 24), int)
    y, x = np.mgrid[:20, :24]
    labels[((y - 9) / 7) ** 2 + ((x - 8) / 5) ** 2 <= 1] = 1
    labels[8:11, 7:10] = 0
    labels[2:7, 15:23] = 2
    labels[12:18, 14:20] = np.tril(np.ones((6, 6), int)) * 3
    image = np.random.default_rng(3).integers(0, 256, (20, 24, 3)).astype(np.uint8)
    return labels, image.transpose(2, 0, 1)


def test_measures_of_small_and_empty_masks():
    image, mask = np.full((3, 4, 5), 7, np.uint8), np.zeros((4, 5), bool)
    assert np.isnan(measure(mask, image)["centroid-0"])
    mask[0, 4] = True
    row = measure(mask, image)
    assert (row["area"], row["perimeter"], row["intensity_mean-1"]) == (1, 0, 7)
    assert perimeter(np.ones((4, 5), bool)) == 2 * (4 + 5) - 4


def test_measures_are_those_of_scikit_image(tmp_path):
    labels, image = regions()
    objects = [
        {"image_id": 1, "category_id": 7 + value % 2, "score": 0.5, "bbox": [1, 2, 3, 4],
         "segmentation": encode_bitmap(labels == value)}
        for value in (1, 2, 3)
    ]  # fmt: skip
    add_measures(objects, image)
    info = {"id": 1, "file_name": "a.png", "height": 20, "width": 24}
    categories = [{"id": 7, "name": "cell"}, {"id": 8, "name": "debris"}]
    entries = [{"image": info, "objects": objects}]
    write_predictions(tmp_path, "measures", entries, ModelInfo(categories))
    with (tmp_path / "results.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["label"], row["category"]) for row in rows] == [
        ("1", "debris"), ("2", "cell"), ("3", "debris"),
    ]  # fmt: skip
    for name, values in EXPECTED.items():
        assert [float(row[name]) for row in rows] == pytest.approx(values, rel=1e-12)
    with (tmp_path / "summary.csv").open(newline="") as stream:
        (summary,) = csv.DictReader(stream)
    assert (summary["objects"], summary["cell"], summary["debris"]) == ("3", "1", "2")
    assert float(summary["area_fraction"]) == pytest.approx(161 / (20 * 24))


@pytest.mark.parametrize("suffix", [".tif", ".png"])
def test_label_images_show_the_highest_score(tmp_path, suffix):
    masks = torch.zeros(3, 6, 8, dtype=torch.bool)
    masks[0, :4, :4] = masks[1, 2:, 2:6] = masks[2, 3, :] = True
    prediction = {"size": (6, 8), "scores": torch.tensor([0.9, 0.5, 0.7]), "masks": masks}
    write_label_image(tmp_path / f"a{suffix}", prediction)
    with Image.open(tmp_path / f"a{suffix}") as image:
        assert image.mode == "I;16"
        values = np.asarray(image)
    expected = np.zeros((6, 8), int)
    expected[masks[1]], expected[masks[2]], expected[masks[0]] = 2, 3, 1
    assert (values == expected).all()
    rles = [encode_bitmap(mask.numpy()) for mask in masks]
    write_label_image(tmp_path / f"b{suffix}", {**prediction, "masks": rles})
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_more_objects_than_16_bits_need_tiff(tmp_path):
    masks = np.zeros((65_600, 1, 2), bool)
    masks[0, 0, 0] = masks[-1, 0, 1] = True
    prediction = {"size": (1, 2), "scores": np.ones(65_600), "masks": masks}
    write_label_image(tmp_path / "a.tif", prediction)
    with Image.open(tmp_path / "a.tif") as image:
        assert np.asarray(image).tolist() == [[1, 65_600]]
    with pytest.raises(ConfigError, match="PNG has no values for 65600 objects: choose tiff"):
        write_label_image(tmp_path / "a.png", prediction)


def test_models_without_masks_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="--format measures needs a model that predicts masks"):
        add_measures([{"bbox": [1, 2, 3, 4]}], np.zeros((3, 5, 5), np.uint8))
    with pytest.raises(ConfigError, match="--label-images needs a model that predicts masks"):
        write_label_image(tmp_path / "a.tif", {"size": (5, 5), "scores": torch.zeros(0)})
