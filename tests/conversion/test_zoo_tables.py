"""Tables of docs/model_zoo.md: they are what is kept, and that is what is published."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from zoo_tables import PUBLISHED, live_section, published_section, torchvision_rows


def test_the_page_has_them(repo_root):
    page = (repo_root / "docs/model_zoo.md").read_text()
    assert live_section() in page
    assert published_section() in page


def test_numbers_of_torchvision_are_its_own():
    found = {row[2]: row[3:] for row in torchvision_rows()}
    assert found["torchvision://MaskRCNN_ResNet50_FPN_Weights.COCO_V1"] == ("37.9", "34.6", "")
    assert found["torchvision://KeypointRCNN_ResNet50_FPN_Weights.COCO_V1"][2] == "65.0"


@pytest.mark.skipif(find_spec("detectron2") is None, reason="detectron2 is not installed")
def test_numbers_of_detectron2_are_those_of_its_page():
    import detectron2

    page = Path(detectron2.__file__).parents[1] / "MODEL_ZOO.md"
    if not page.exists():
        pytest.skip("detectron2 is not imported from its sources")
    published = dict(_rows_of(page.read_text()))
    with PUBLISHED.open(newline="") as file:
        kept = [row for row in csv.DictReader(file) if row["framework"] == "detectron2"]
    assert len(kept) > 40
    for row in kept:
        wanted = published[row["weights"].removeprefix("detectron2://")]
        for column, name in (("box", "box AP"), ("mask", "mask AP"), ("keypoint", "kp. AP")):
            assert row[column] == wanted.get(name, ""), row["model"]


def _rows_of(page: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The file of each model, and its numbers by their column."""
    for table in re.findall(r"<table>.*?</table>", page, re.DOTALL):
        columns = [name.replace("<br/>", " ") for name in re.findall(r"<th[^>]*>(.*?)</th>", table)]
        for row in re.findall(r"<tr>.*?</tr>", table, re.DOTALL):
            file = re.search(r"detectron2/([^\"]+\.pkl)", row)
            cells = [re.sub("<.*?>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]
            if file:
                yield file[1], dict(zip(columns, cells, strict=True))
