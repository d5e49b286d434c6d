"""The `data` arguments of the Python functions."""

import pytest
from PIL import Image

from detlite.apps.dataset_formats.data_arguments import (
    evaluation_data,
    keep_entry_options,
    training_data,
)
from detlite.config import ConfigError, load_config
from detlite.data import DataError


@pytest.mark.parametrize("data", [3, (), ("a.json",), ("a.json", 3), {"a": 1}, ["a", "b", "c"]])
def test_invalid_data(data):
    expected = r"must be \(annotation file, image folder\)"
    with pytest.raises(ConfigError, match=f"^data is .*{expected}"):
        training_data(data)
    with pytest.raises(ConfigError, match=f"^data is .*{expected}"):
        evaluation_data(data)
    with pytest.raises(ConfigError, match=f"^test_data is .*{expected}"):
        training_data(("a.json", "b"), data)


def test_a_path_and_a_pair(tmp_path):
    with pytest.raises(ConfigError, match="test_data is a pair, but data is a path"):
        training_data(tmp_path, ("a.json", "b"))
    with pytest.raises(ConfigError, match=r"^test_data is .*must be"):
        training_data(("a.json", "b"), tmp_path)
    with pytest.raises(ConfigError, match=r"^data is .*must be"):
        evaluation_data(str(tmp_path))


def test_missing_data(tmp_path):
    with pytest.raises(DataError, match="there is no such file or folder"):
        training_data(tmp_path / "none")
    with pytest.raises(DataError, match=r"the annotation file .*none\.json does not exist"):
        training_data((tmp_path / "none.json", tmp_path))


def test_data_are_read_with_the_options_of_init(tmp_path):
    for number, label in enumerate(("0 .5 .5 .4 .4", "1 .5 .5 .4 .4", "1 .5 .5 .4")):
        image = Image.effect_noise((24, 24), 9 * number)
        for folder, file in (("photos", f"{number}.png"), ("labels", f"{number}.txt")):
            (tmp_path / folder).mkdir(exist_ok=True)
            if folder == "photos":
                image.save(tmp_path / folder / file)
            else:
                (tmp_path / folder / file).write_text(label)
    with pytest.raises(DataError, match="--skip-bad"):
        training_data(tmp_path / "labels", images=str(tmp_path / "photos"))
    options = {"images": str(tmp_path / "photos"), "skip_bad": True, "single_class": True}
    keys, summary = training_data(tmp_path / "labels", **options)
    assert keys["MODEL.ROI_BOX_HEAD.NUM_CLASSES"] == 2
    assert "all categories are one" in summary


def test_the_fields_and_evaluators_of_replaced_datasets_remain():
    catalog = [
        {"name": "a", "fields": ["code"]},
        {"name": "b", "evaluators": ["coco", "counts"]},
        {"name": "c", "fields": ["other"]},
    ]
    names = {"DATASETS.CATALOG": catalog, "DATASETS.TRAIN": ["a"], "DATASETS.TEST": ["b"]}
    keys = {"DATASETS.CATALOG": [{"name": "train"}, {"name": "test"}]}
    keep_entry_options(keys, load_config(None, names).DATASETS)
    train, test = keys["DATASETS.CATALOG"]
    assert train == {"name": "train", "fields": ["code"]}
    assert test == {"name": "test", "evaluators": ["coco", "counts"]}
