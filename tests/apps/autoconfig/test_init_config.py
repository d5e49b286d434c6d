"""Choices in a YAML file."""

import yaml

from detlite.apps.autoconfig.dataset_facts import BASE, Choice
from detlite.apps.autoconfig.init_config import config_text, dataset_choices
from detlite.apps.dataset_formats import Source


def test_values_are_read_back_and_reasons_are_comments(tmp_path):
    choices = [
        Choice("MODEL.MASK_ON", True, "a reason " * 30),
        Choice("SOLVER.BASE_LR", 0.0005),
        Choice("MODEL.RPN.ANCHOR_SIZES", [[1, 2], [3, 4]], "names: a\nb"),
        Choice("MODEL.WEIGHT", "package://x"),
    ]
    sets = {
        split: Source(tmp_path / f"cells: x/{split}.json", tmp_path / "cells: x/images")
        for split in ("train", "val")
    }
    text = config_text([*dataset_choices(sets, "made up"), *choices], "a set", BASE)
    content = yaml.safe_load(text)
    assert content["MODEL"]["MASK_ON"] is True
    assert content["MODEL"]["RPN"]["ANCHOR_SIZES"] == [[1, 2], [3, 4]]
    assert content["MODEL"]["WEIGHT"] == "package://x"
    assert content["SOLVER"]["BASE_LR"] == 0.0005
    assert content["DATASETS"]["ROOT"] == str(tmp_path / "cells: x")
    assert content["DATASETS"]["CATALOG"][1] == {
        "name": "cells_x_val", "annotations": "val.json", "images": "images",
    }  # fmt: skip
    assert content["DATASETS"]["TEST"] == ["cells_x_val"]
    assert max(map(len, text.splitlines())) <= 100
    assert "    # names: a b\n" in text
    assert " ".join(text.split()).replace("# ", "").count("a reason") == 30


def test_without_a_validation_set(tmp_path):
    sets = {"train": Source(tmp_path / "train.json", tmp_path / "images")}
    content = yaml.safe_load(config_text(dataset_choices(sets, ""), "", ""))
    assert content["DATASETS"]["TEST"] == []
    assert len(content["DATASETS"]["CATALOG"]) == 1
