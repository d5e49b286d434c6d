"""Tables of benchmarks/results/fidelity, made from the records next to this file."""

import csv
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from torchvision.models import get_model_weights

from tests.conversion.detectron2.live_comparison import RECORD
from tests.conversion.torchvision_models import TORCHVISION

PUBLISHED = Path(__file__).with_name("published_numbers.csv")
PAGES = Path(__file__).parents[2] / "benchmarks" / "results" / "fidelity"


def replace_rows(page: Path, rows: Iterable[str]) -> None:
    """Replace the rows of the only table of a page; its two header lines stay."""
    text = page.read_text()
    table = re.compile(r"(^\|.*\n\|[-|]+\n)(?:\|.*\n)*", re.MULTILINE)
    assert len(table.findall(text)) == 1, f"{page} must have one table"
    page.write_text(table.sub(lambda match: match[1] + "".join(rows), text))


def live_rows() -> Iterator[str]:
    """Yield the rows of detectron2_models.md, as recorded by `detectron2/live_comparison.py`."""
    for name, record in json.loads(RECORD.read_text()).items():
        numbers = [f"{record[key]:.1g}" if record[key] else "" for key in ("box", "score", "mask")]
        cells = [name, str(record["count"]), str(record["unmatched"]), *numbers]
        yield "| " + " | ".join([*cells, record["date"], record["versions"]]) + " |\n"


def published_rows() -> Iterator[str]:
    """Yield the rows of published_ap.md for every family of weights that loads."""
    with PUBLISHED.open(newline="") as file:
        rows = [tuple(row.values()) for row in csv.DictReader(file)]
    for framework, model, weights, *numbers in [*rows, *torchvision_rows()]:
        yield f"| {framework} | {model} | `{weights}` | " + " | ".join(numbers) + " |\n"


def torchvision_rows() -> Iterator[tuple[str, ...]]:
    """Yield framework, model, weight name and AP of torchvision's weights, from their metadata."""
    for name in TORCHVISION:
        for weights in get_model_weights(name):
            numbers = weights.meta["_metrics"]["COCO-val2017"]
            ap = (str(numbers.get(f"{kind}_map", "")) for kind in ("box", "mask", "kp"))
            yield ("torchvision", name, f"torchvision://{weights}", *ap)
