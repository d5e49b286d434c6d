"""A page of what inspecting data sets found, with pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from detlite.apps.drawing.detections import draw_detections
from detlite.apps.drawing.page import jpeg, render
from detlite.data.errors import DataError
from detlite.data.loading.image_io import read_image
from detlite.data.remote.shards import image_file_of

from .inspection_report import Defect, Inspection

_SIDE = 320  # of a picture on the page
_MOST_ROWS = 500  # of a kind of defects
_MOST_PICTURES = 12  # of a kind of defects, of examples, of pairs

Pair = tuple[tuple[int, int], tuple[int, int]]


def data_page(sets: Sequence[Inspection], pairs: Sequence[Pair], numbers: Sequence[Any]) -> str:
    """The HTML of a report; pictures are in it.

    Args:
        sets: what was found.
        pairs: of (set, image id), see `near_duplicates`.
        numbers: for each set its statistics, (name, value).

    Raises:
        DataError: jinja2 is not installed.
    """
    shown = [
        [_picture(sets[number], image_id, [], f"{Path(sets[number].name).name}, image {image_id}")
         for number, image_id in pair]
        for pair in pairs[:_MOST_PICTURES]
    ]  # fmt: skip
    described = [_describe(one, own) for one, own in zip(sets, numbers, strict=True)]
    return render("data.html", sets=described, pairs=shown, pair_count=len(pairs))


def _describe(found: Inspection, numbers: Any) -> dict[str, Any]:
    balance = found.balance()
    most = max((objects for _, objects, _ in balance), default=0) or 1
    refused = len(found.refused)
    kinds = Counter((defect.kind, defect.refused) for defect in found.defects)
    step = max(1, len(found.fingerprinted) // _MOST_PICTURES)
    return {
        "file": found.name,
        "refused": refused,
        "verdict": f"Training refuses {refused} entries." if refused else "Training takes it.",
        "numbers": numbers,
        "balance": [(*line, round(20 * line[1] / most, 2)) for line in balance],
        "kinds": [_kind(found, kind, count) for kind, count in kinds.items()],
        "examples": [
            _picture(found, image_id, _objects(found, image_id), f"image {image_id}")
            for image_id in found.fingerprinted[::step][:_MOST_PICTURES]
        ],
    }


def _kind(found: Inspection, kind: tuple[str, bool], count: int) -> dict[str, Any]:
    own = [defect for defect in found.defects if (defect.kind, defect.refused) == kind]
    return {
        "name": kind[0],
        "refused": kind[1],
        "count": count,
        "rows": [(defect.where, defect.problem) for defect in own[:_MOST_ROWS]],
        "pictures": [
            _picture(found, defect.image_id, _marked(defect), defect.where)
            for defect in own[:_MOST_PICTURES]
            if defect.image_id in found.images
        ],
    }


def _objects(found: Inspection, image_id: int) -> list[tuple[Any, str]]:
    names = found.categories
    rows = [row for row in found.objects if row["image_id"] == image_id]
    return [(row["bbox"], names[row["category_id"]]) for row in rows]


def _marked(defect: Defect) -> list[tuple[Any, str]]:
    return [] if defect.box is None else [(defect.box, defect.kind)]


def _picture(
    found: Inspection, image_id: int, objects: Sequence[tuple[Any, str]], text: str
) -> dict[str, str]:
    """A picture with (box, name) of objects, for the template; without it where it is broken."""
    try:
        image = read_image(image_file_of(found.folder, found.images[image_id]))
    except DataError:
        return {"source": "", "text": f"{text}: cannot be shown"}
    boxes = torch.tensor([box for box, _ in objects], dtype=torch.float32).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    names = list(dict.fromkeys(name for _, name in objects))
    labels = torch.tensor([names.index(name) + 1 for _, name in objects], dtype=torch.int64)
    categories = [{"id": place, "name": name} for place, name in enumerate(names)]
    drawn = draw_detections(image, {"boxes": boxes, "labels": labels}, categories, min_side=_SIDE)
    drawn.thumbnail((_SIDE, _SIDE), Image.Resampling.BILINEAR)
    return {"source": jpeg(drawn), "text": text}
