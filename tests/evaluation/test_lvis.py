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


def random_set(rng: np.random.Generator) -> tuple[COCO, list[dict]]:
    """Make images with objects of 6 categories, some negative or not exhaustive, and detections.

    The detections have few distinct scores, and the first image has more than MAX_DETS.
    """
    ids = [2 * k for k in range(1, 7)]
    content = coco_content((), (7, 3, 5, 4), categories={k: str(k) for k in reversed(ids)})
    for category in content["categories"]:
        category["frequency"] = "rcf"[category["id"] // 2 % 3]
    rows = []
    for image in content["images"]:
        number = image["id"]
        image["neg_category_ids"] = rng.choice(ids, 2, replace=False).tolist()
        image["not_exhaustive_category_ids"] = rng.choice(ids, 1).tolist()
        for _ in range(6):
            side = rng.integers(10, 60, 2)
            box = [*rng.integers(0, 100 - side).tolist(), *side.tolist()]
            fields = {"id": len(content["annotations"]) + 1, "segmentation": rectangle(*box)}
            content["annotations"].append(coco_object(box, int(rng.choice(ids)), number, **fields))
            for _ in range(60 if number == 7 else 5):
                moved = np.clip(np.array(box) + rng.integers(-6, 7, 4), [0, 0, 4, 4], 99)
                moved[2:] = np.minimum(moved[2:], 100 - moved[:2])
                category = content["annotations"][-1]["category_id"]
                category = int(rng.choice(ids)) if rng.random() < 0.2 else category
                rows.append(detect(number, category, float(rng.integers(1, 9)) / 9, moved.tolist()))
        # Detections without area are ignored.
        first = content["annotations"][-6]
        rows.append(detect(number, first["category_id"], 0.95, [*first["bbox"][:3], 0]))
    return make_coco(content), rows


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_values_of_the_lvis_package(tmp_path, monkeypatch, seed, kind):
    lvis = pytest.importorskip("lvis", exc_type=ImportError)
    truth, rows = random_set(np.random.default_rng(seed))
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
    assert 0.1 < metrics["AP"] < 0.9
    assert None not in (metrics["APr"], metrics["APc"], metrics["APf"])
