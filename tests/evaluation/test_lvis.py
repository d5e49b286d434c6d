"""LVIS average precision: the counted detections, invalid input, and the values of `lvis`."""

import json
from collections.abc import Sequence

import numpy as np
import pytest
from pycocotools import mask as mask_utils
from pycocotools.coco import COCO

from detlite.config import ConfigError
from detlite.evaluation import Results
from detlite.evaluation.lvis import MAX_DETS, evaluate_lvis
from detlite.files.errors import DataError
from detlite.structures.masks.formats import to_bitmap
from tests.builders import coco_content, coco_detection, coco_object, make_coco, rectangle
from tests.evaluation.synthetic_detections import CATEGORIES, box_rle, synthetic_dataset

BOX = [4.0, 4.0, 40.0, 40.0]
ELSEWHERE = [50.0, 50.0, 40.0, 40.0]
NAMES = {3: "axe", 5: "bun", 8: "cap"}


@pytest.fixture
def truth():
    """Two images of 100 x 100 with an axe each. The first has no bun; caps are not annotated."""
    objects = [coco_object(BOX, 3, image, segmentation=rectangle(*BOX)) for image in (1, 2)]
    content = coco_content(objects, (1, 2), categories=NAMES)
    for image, negative in zip(content["images"], ([5], []), strict=True):
        image |= {"neg_category_ids": negative, "not_exhaustive_category_ids": []}
    for category, frequency in zip(content["categories"], "rcf", strict=True):
        category["frequency"] = frequency
    return make_coco(content)


def detect(image: int, category: int, score: float, box: list[float] = BOX) -> dict:
    rle = mask_utils.encode(to_bitmap(rectangle(*box), 100, 100).astype("uint8", order="F"))
    mask = {**rle, "counts": rle["counts"].decode()}
    return coco_detection(box, score, category, image, segmentation=mask)


def measure(truth: COCO, rows: list[dict], kinds: Sequence[str] = ("bbox", "segm")) -> dict:
    return evaluate_lvis(truth, Results.from_coco(rows, kinds), kinds)


BOTH = [detect(1, 3, 0.5), detect(2, 3, 0.5)]


class TestScores:
    def test_perfect_detections(self, truth):
        metrics = measure(truth, BOTH)
        for kind in ("bbox", "segm"):
            row = metrics[kind]
            assert row["AP"] == row["APr"] == row["APm"] == row["AR@300"] == pytest.approx(1)
            assert row["APc"] is row["APf"] is row["APl"] is None
            assert row["per_category"] == {"axe": pytest.approx(1), "bun": None, "cap": None}

    def test_no_detections(self, truth):
        metrics = measure(truth, [])
        for kind in ("bbox", "segm"):
            assert metrics[kind]["AP"] == metrics[kind]["AR@300"] == 0
            assert metrics[kind]["APc"] is None

    def test_false_positives_of_a_non_exhaustive_category_are_ignored(self, truth):
        wrong = detect(1, 3, 0.9, ELSEWHERE)
        # The second and third of three are true positives.
        assert measure(truth, [wrong, *BOTH])["bbox"]["AP"] == pytest.approx(2 / 3)
        truth.dataset["images"][0]["not_exhaustive_category_ids"] = [3]
        assert measure(truth, [wrong, *BOTH])["bbox"]["AP"] == pytest.approx(1)

    def test_categories_that_are_not_annotated_are_ignored(self, truth):
        mask = rectangle(*BOX)
        truth.dataset["annotations"].append(coco_object(BOX, 5, 2, id=3, segmentation=mask))
        right, wrong = detect(2, 5, 0.5), detect(1, 5, 0.9)
        assert measure(truth, [right, wrong])["bbox"]["APc"] == pytest.approx(0.5)
        truth.dataset["images"][0]["neg_category_ids"] = []
        assert measure(truth, [right, wrong])["bbox"]["APc"] == pytest.approx(1)

    def test_limit_of_300_per_image(self, truth):
        many = [detect(1, 8, 0.9, ELSEWHERE)] * 300
        row = measure(truth, [*many, *BOTH], ["bbox"])["bbox"]
        assert row["AR@300"] == pytest.approx(0.5)
        row = measure(truth, [*many[:299], *BOTH], ["bbox"])["bbox"]
        assert row["AR@300"] == pytest.approx(1)

    @pytest.mark.parametrize(
        ("key", "field"),
        [("images", "neg_category_ids"), ("images", "not_exhaustive_category_ids"),
         ("categories", "frequency")],
    )  # fmt: skip
    def test_missing_field(self, truth, key, field):
        del truth.dataset[key][1][field]
        with pytest.raises(DataError, match=rf"{key}, id [25]: no '{field}'"):
            measure(truth, BOTH)

    def test_without_hotcoco(self, truth, monkeypatch):
        monkeypatch.setattr("detlite.evaluation.lvis.find_spec", lambda name: None)
        with pytest.raises(ConfigError, match="needs the package hotcoco: pip install hotcoco"):
            measure(truth, BOTH)


def random_set(seed: int) -> tuple[COCO, list[dict]]:
    """Make a set in which some categories of an image are negative or not exhaustive.

    The detections have few distinct scores, and the first image has more than MAX_DETS.
    """
    rng = np.random.default_rng(seed)
    truth, rows = synthetic_dataset(seed, crowds=0.0)
    for category, frequency in zip(truth.dataset["categories"], "rcf", strict=True):
        category["frequency"] = frequency
    for image in truth.dataset["images"]:
        image["neg_category_ids"] = rng.choice([*CATEGORIES], 2, replace=False).tolist()
        image["not_exhaustive_category_ids"] = rng.choice([*CATEGORIES], 1).tolist()
    first = [row for row in rows if row["image_id"] == truth.dataset["images"][0]["id"]]
    rows = [{**row, "score": float(rng.integers(1, 9)) / 9} for row in first * 60 + rows]
    assert len(first) * 60 > MAX_DETS
    thin = [*rows[0]["bbox"][:3], 0.0]  # without area, which is ignored
    rows[0] |= {"bbox": thin, "segmentation": box_rle(np.array(thin)), "score": 0.95}
    return truth, rows


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_values_of_the_lvis_package(tmp_path, monkeypatch, seed, kind):
    lvis = pytest.importorskip("lvis", exc_type=ImportError)
    truth, rows = random_set(seed)
    field = {"bbox": "bbox", "segm": "segmentation"}[kind]
    fields = ("image_id", "category_id", "score", field)
    metrics = measure(truth, rows, [kind])[kind]
    file = tmp_path / "truth.json"
    file.write_text(json.dumps(truth.dataset))
    package_truth = lvis.LVIS(str(file))
    own = [{name: row[name] for name in fields} for row in rows]
    official = lvis.LVISEval(package_truth, lvis.LVISResults(package_truth, own, MAX_DETS), kind)
    monkeypatch.setattr(np, "float", float, raising=False)  # removed in numpy 1.24
    official.run()
    for name, value in official.get_results().items():
        assert metrics[name] == (None if value == -1 else pytest.approx(value, rel=0, abs=1e-12))
    assert 0.05 < metrics["AP"] < 0.9
    assert None not in (metrics["APr"], metrics["APc"], metrics["APf"])
