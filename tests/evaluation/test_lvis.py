"""LVIS's average precision: which detections count, and what is refused."""

from __future__ import annotations

import sys

import pytest
from pycocotools import mask as mask_utils
from pycocotools.coco import COCO

from detlite.config import ConfigError
from detlite.data.errors import DataError
from detlite.evaluation.lvis import evaluate_lvis
from detlite.structures.masks import to_bitmap

BOX = [4.0, 4.0, 40.0, 40.0]
ELSEWHERE = [50.0, 50.0, 40.0, 40.0]
NAMES = {3: "axe", 5: "bun", 8: "cap"}


@pytest.fixture
def truth() -> COCO:
    """Two pictures of 100 x 100 with an axe each; buns are absent from the first, cap unknown."""
    pictures = [
        {"id": number, "height": 100, "width": 100, "neg_category_ids": negative,
         "not_exhaustive_category_ids": []}
        for number, negative in ((1, [5]), (2, []))
    ]  # fmt: skip
    x, y, w, h = BOX
    annotations = [
        {"id": number, "image_id": number, "category_id": 3, "bbox": BOX, "area": w * h,
         "segmentation": [[x, y, x + w, y, x + w, y + h, x, y + h]]}
        for number in (1, 2)
    ]  # fmt: skip
    categories = [
        {"id": number, "name": name, "frequency": frequency}
        for (number, name), frequency in zip(NAMES.items(), "rcf", strict=True)
    ]
    coco = COCO()
    coco.dataset = {"images": pictures, "annotations": annotations, "categories": categories}
    coco.createIndex()
    return coco


def found(image: int, category: int, score: float, box: list[float] = BOX) -> dict:
    x, y, w, h = box
    polygon = [[x, y, x + w, y, x + w, y + h, x, y + h]]
    rle = mask_utils.encode(to_bitmap(polygon, 100, 100).astype("uint8", order="F"))
    return {
        "image_id": image, "category_id": category, "score": score, "bbox": box,
        "segmentation": {**rle, "counts": rle["counts"].decode()},
    }  # fmt: skip


@pytest.fixture
def package() -> None:
    """The tests that use the package `lvis`."""
    pytest.importorskip("lvis", exc_type=ImportError)


BOTH = [found(1, 3, 0.5), found(2, 3, 0.5)]


@pytest.mark.usefixtures("package")
class TestWithThePackage:
    def test_all_found_is_1(self, truth):
        metrics = evaluate_lvis(truth, BOTH)
        for kind in ("bbox", "segm"):
            row = metrics[kind]
            assert row["AP"] == row["APr"] == row["APm"] == row["AR@300"] == pytest.approx(1)
            assert row["APc"] is row["APf"] is row["APl"] is None
            assert row["per_category"] == {"axe": pytest.approx(1), "bun": None, "cap": None}

    def test_nothing_found_is_0(self, truth):
        metrics = evaluate_lvis(truth, [])
        for kind in ("bbox", "segm"):
            assert metrics[kind]["AP"] == metrics[kind]["AR@300"] == 0
            assert metrics[kind]["APc"] is None

    def test_false_alarms_cost_unless_the_category_is_not_exhaustive(self, truth):
        wrong = found(1, 3, 0.9, ELSEWHERE)
        # Right are the second and third of three.
        assert evaluate_lvis(truth, [wrong, *BOTH])["bbox"]["AP"] == pytest.approx(2 / 3)
        truth.dataset["images"][0]["not_exhaustive_category_ids"] = [3]
        assert evaluate_lvis(truth, [wrong, *BOTH])["bbox"]["AP"] == pytest.approx(1)

    def test_categories_that_are_not_annotated_in_a_picture_do_not_count(self, truth):
        bun = {"id": 3, "image_id": 2, "category_id": 5, "bbox": BOX, "area": 1600.0,
               "segmentation": truth.dataset["annotations"][1]["segmentation"]}  # fmt: skip
        truth.dataset["annotations"].append(bun)
        right, wrong = found(2, 5, 0.5), found(1, 5, 0.9)
        assert evaluate_lvis(truth, [right, wrong])["bbox"]["APc"] == pytest.approx(0.5)
        truth.dataset["images"][0]["neg_category_ids"] = []
        assert evaluate_lvis(truth, [right, wrong])["bbox"]["APc"] == pytest.approx(1)

    def test_the_best_300_of_a_picture_count(self, truth):
        many = [found(1, 8, 0.9, ELSEWHERE)] * 300
        row = evaluate_lvis(truth, [*many, *BOTH], ["bbox"])["bbox"]
        assert row["AR@300"] == pytest.approx(0.5)
        row = evaluate_lvis(truth, [*many[:299], *BOTH], ["bbox"])["bbox"]
        assert row["AR@300"] == pytest.approx(1)

    @pytest.mark.parametrize(
        ("key", "field"),
        [("images", "neg_category_ids"), ("images", "not_exhaustive_category_ids"),
         ("categories", "frequency")],
    )  # fmt: skip
    def test_a_file_that_is_not_of_lvis(self, truth, key, field):
        del truth.dataset[key][1][field]
        with pytest.raises(DataError, match=rf"{key}, id [25]: no '{field}'"):
            evaluate_lvis(truth, BOTH)

    def test_results_of_another_set(self, truth):
        with pytest.raises(DataError, match="result 1: image_id 7 is not in the ground truth"):
            evaluate_lvis(truth, [BOTH[0], found(7, 3, 0.5)])


def test_without_the_package(truth, monkeypatch):
    monkeypatch.setitem(sys.modules, "lvis", None)
    with pytest.raises(ConfigError, match="pip install lvis"):
        evaluate_lvis(truth, BOTH)
