"""HTML page of the defects of datasets, with example images."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from detlite.apps.drawing.detections import Color, draw_detections
from detlite.apps.drawing.html_page import (
    Mark,
    crop_window,
    draw_window,
    join_images,
    jpeg,
    render,
)
from detlite.data.images.reading import read_image
from detlite.files.errors import DataError

from .inspection_report import Inspection, Row

_SIDE = 320  # pixels of an image on the page
_MAX_ROWS = 500  # listed defects of each kind
_MAX_IMAGES = 12  # images of each kind of defect, of examples and of pairs

_SUSPICIOUS_COLOR: Color = (255, 60, 40)
_NO_NAMES = [{"id": 0, "name": ""}]


def data_page(sets: Sequence[Inspection], similar: dict[str, np.ndarray]) -> str:
    """Return the page as one HTML document that contains its images.

    `similar` are pairs of images, see `similar_images`.

    Raises ConfigError if jinja2 is not installed.
    """

    def shown(index: int, number: int) -> dict[str, str]:
        text = f"{Path(sets[index].name).name}, image {sets[index].image(number)['id']}"
        return _image(sets[index], number, text)

    kinds = [
        {"name": kind, "count": len(pairs),
         "pairs": [(shown(*pair[:2]), shown(*pair[2:])) for pair in pairs[:_MAX_IMAGES].tolist()]}
        for kind, pairs in similar.items() if len(pairs)
    ]  # fmt: skip
    described = [_describe(inspection) for inspection in sets]
    return render("dataset_check.html", sets=described, similar=kinds)


def _describe(inspection: Inspection) -> dict[str, Any]:
    """Describe a dataset for the template."""
    kinds = defaultdict(list)
    for defect in inspection.defects:
        kinds[defect.kind, defect.refused].append(defect)
    readable = np.flatnonzero(inspection.prints["known"]).tolist()
    examples = [
        _image(inspection, n, f"image {inspection.image(n)['id']}", inspection.rows(n))
        for n in readable[:: max(1, len(readable) // _MAX_IMAGES)][:_MAX_IMAGES]
    ]
    return {
        "file": inspection.name,
        "refused": len(inspection.refused),
        "numbers": inspection.statistics(),
        "balance": inspection.class_balance(),
        "kinds": [
            {"name": name, "refused": refused, "count": len(defects), "rows": defects[:_MAX_ROWS],
             "images": [_image(inspection, number, d.where, suspicious=d.box)
                        for d in defects[:_MAX_IMAGES]
                        if (number := inspection.number(d.image_id)) is not None]}
            for (name, refused), defects in kinds.items()
        ],
        "examples": examples,
    }  # fmt: skip


def _image(
    inspection: Inspection,
    number: int,
    text: str,
    objects: Sequence[Row] = (),
    suspicious: Sequence[float] | None = None,
) -> dict[str, str]:
    """Return an image for the template, with its objects, or with one box xywh and its enlargement.

    If the image cannot be read, only the text is returned.
    """
    try:
        path = inspection.folder / inspection.image(number)["file_name"]
        image = read_image(path, options=inspection.image_options)
    except DataError:
        return {"source": "", "text": f"{text}: cannot be shown"}
    boxes = [row["bbox"] for row in objects] if suspicious is None else [suspicious]
    xywh = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    ids = list(inspection.categories)
    target: dict[str, Any] = {
        "boxes": torch.cat([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], dim=1),
        "labels": torch.tensor([ids.index(row["category_id"]) + 1 for row in objects]),
    }
    if suspicious is not None:
        target["labels"] = torch.ones(1, dtype=torch.int64)
    elif all(row.get("segmentation") for row in objects):
        target["masks"] = [row["segmentation"] for row in objects]
    names = [{"id": key, "name": name} for key, name in inspection.categories.items()]
    colors = None if suspicious is None else [_SUSPICIOUS_COLOR]
    drawn = draw_detections(
        image, target, names or _NO_NAMES, min_side=_SIDE, max_side=_SIDE, colors=colors,
        tags=None if suspicious is None else False,
    )  # fmt: skip
    if colors:
        window = crop_window(boxes[0], *image.shape[-2:])
        inset = draw_window(image, window, [Mark(boxes[0], "", _SUSPICIOUS_COLOR)])
        drawn = join_images([[drawn, inset]])
    return {"source": jpeg(drawn), "text": text}
