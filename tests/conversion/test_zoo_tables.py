"""Check the generated tables of benchmarks/results/fidelity against records and publications."""

import csv
import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from detlite.checkpoint.weight_catalog import _SIGNATURES
from tests.conversion.detectron2.live_comparison import MODELS, RECORD
from tests.conversion.zoo_tables import (
    PAGES,
    PUBLISHED,
    live_rows,
    published_rows,
    replace_rows,
    torchvision_rows,
)


def test_pages_contain_the_generated_rows():
    assert "".join(live_rows()) in (PAGES / "detectron2_models.md").read_text()
    assert "".join(published_rows()) in (PAGES / "published_ap.md").read_text()


def test_replaces_the_rows_of_a_table(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nEnd.\n")
    replace_rows(page, ["| 3 | 4 |\n", "| 5 | 6 |\n"])
    assert page.read_text() == "# Title\n\n| a | b |\n|---|---|\n| 3 | 4 |\n| 5 | 6 |\n\nEnd.\n"


def test_torchvision_metadata_has_the_published_ap():
    rows = {row[2]: row[3:] for row in torchvision_rows()}
    assert rows["torchvision://MaskRCNN_ResNet50_FPN_Weights.COCO_V1"] == ("37.9", "34.6", "")
    assert rows["torchvision://KeypointRCNN_ResNet50_FPN_Weights.COCO_V1"][2] == "65.0"


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
def test_detectron2_ap_equals_its_model_zoo(name, file, count):
    import detectron2

    page = Path(detectron2.__file__).parents[1] / file
    if not page.exists():
        pytest.skip("detectron2 is not imported from its sources")
    published = dict(_rows_of(page.read_text()))
    rows = [row for row in _published() if row["framework"] == name]
    assert len(rows) == count
    for row in rows:
        expected = published[row["weights"].removeprefix("detectron2://")]
        for column, name in (("box", "box AP"), ("mask", "mask AP"), ("keypoint", "kp. AP")):
            assert row[column] == expected.get(name, ""), row["model"]


def test_every_detectron_model_has_a_published_ap():
    rows = [row["weights"] for row in _published() if row["framework"] == "Detectron"]
    assert rows == [f"catalog://Caffe2Detectron/COCO/{model}" for model in _SIGNATURES]


def test_every_live_model_was_compared():
    assert json.loads(RECORD.read_text()).keys() == MODELS.keys()


def test_mmdetection_ap_equals_the_ap_in_file_names():
    """Compare AP with the fractions in file names, which may lack a trailing zero."""
    rows = [row for row in _published() if row["framework"] == "mmdetection"]
    count = 0
    for row in rows:
        for kind, column in (("bbox", "box"), ("segm", "mask")):
            match = re.search(rf"{kind}_mAP-([\d.]+)_", row["weights"])
            if match:
                assert float(row[column]) / 100 == pytest.approx(float(match[1])), row["model"]
                count += 1
        assert row["model"] in row["weights"]
    assert count == 12


def _published() -> list[dict[str, str]]:
    with PUBLISHED.open(newline="") as file:
        return list(csv.DictReader(file))


def _rows_of(page: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the weight file of each model and its numbers by column."""
    for table in re.findall(r"<table>.*?</table>", page, re.DOTALL):
        columns = [name.replace("<br/>", " ") for name in re.findall(r"<th[^>]*>(.*?)</th>", table)]
        for row in re.findall(r"<tr>.*?</tr>", table, re.DOTALL):
            file = re.search(r"detectron2/([^\"]+\.pkl)", row)
            cells = [re.sub("<.*?>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]
            if file:
                yield file[1], dict(zip(columns, cells, strict=True))
