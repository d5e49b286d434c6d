"""Tables of docs/model_zoo.md: they are what is kept, and that is what is published."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from detlite.conversion.download.weight_catalog import _SIGNATURES
from tests.conversion.detectron2_live import MODELS, RECORD
from tests.conversion.zoo_tables import PUBLISHED, live_section, published_section, torchvision_rows


def test_the_page_has_them(repo_root):
    page = (repo_root / "docs/model_zoo.md").read_text()
    assert live_section() in page
    assert published_section() in page


def test_numbers_of_torchvision_are_its_own():
    found = {row[2]: row[3:] for row in torchvision_rows()}
    assert found["torchvision://MaskRCNN_ResNet50_FPN_Weights.COCO_V1"] == ("37.9", "34.6", "")
    assert found["torchvision://KeypointRCNN_ResNet50_FPN_Weights.COCO_V1"][2] == "65.0"


@pytest.mark.skipif(find_spec("detectron2") is None, reason="detectron2 is not installed")
@pytest.mark.parametrize(
    ("name", "file", "count"),
    [
        ("detectron2", "MODEL_ZOO.md", 54),
        (
            "detectron2's Detectron1-Comparisons",
            "configs/Detectron1-Comparisons/README.md",
            3,
        ),
        ("detectron2's ViTDet", "projects/ViTDet/README.md", 6),
    ],
)
def test_numbers_of_detectron2_are_those_of_its_page(name, file, count):
    import detectron2

    page = Path(detectron2.__file__).parents[1] / file
    if not page.exists():
        pytest.skip("detectron2 is not imported from its sources")
    published = dict(_rows_of(page.read_text()))
    kept = [row for row in _kept() if row["framework"] == name]
    assert len(kept) == count
    for row in kept:
        wanted = published[row["weights"].removeprefix("detectron2://")]
        for column, name in (("box", "box AP"), ("mask", "mask AP"), ("keypoint", "kp. AP")):
            assert row[column] == wanted.get(name, ""), row["model"]


def test_every_model_of_detectron_has_its_numbers():
    kept = [row["weights"] for row in _kept() if row["framework"] == "Detectron"]
    assert kept == [f"catalog://Caffe2Detectron/COCO/{model}" for model in _SIGNATURES]


def test_what_was_compared_live_is_what_there_is_to_compare():
    assert json.loads(RECORD.read_text()).keys() == MODELS.keys()


def test_mmdetections_files_name_the_numbers_that_they_were_measured_with():
    """As far as they have them, as fractions; a zero at their end may be left out."""
    kept = [row for row in _kept() if row["framework"] == "mmdetection"]
    named = 0
    for row in kept:
        for kind, column in (("bbox", "box"), ("segm", "mask")):
            found = re.search(rf"{kind}_mAP-([\d.]+)_", row["weights"])
            if found:
                assert float(row[column]) / 100 == pytest.approx(float(found[1])), row["model"]
                named += 1
        assert row["model"] in row["weights"]
    assert named == 12


def _kept() -> list[dict[str, str]]:
    with PUBLISHED.open(newline="") as file:
        return list(csv.DictReader(file))


def _rows_of(page: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The file of each model, and its numbers by their column."""
    for table in re.findall(r"<table>.*?</table>", page, re.DOTALL):
        columns = [name.replace("<br/>", " ") for name in re.findall(r"<th[^>]*>(.*?)</th>", table)]
        for row in re.findall(r"<tr>.*?</tr>", table, re.DOTALL):
            file = re.search(r"detectron2/([^\"]+\.pkl)", row)
            cells = [re.sub("<.*?>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]
            if file:
                yield file[1], dict(zip(columns, cells, strict=True))
