"""HTML page of the defects of datasets, with example images."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from detlite.apps.drawing.detections import Color, category_color
from detlite.apps.drawing.html_page import Mark, crop_window, draw_window, join_images, jpeg, render
from detlite.data.images.reading import read_image
from detlite.files.errors import DataError

from .inspection_report import Inspection, Row

_SIDE = 320  # pixels of an image on the page
_MAX_ROWS = 500  # listed defects of each kind
_MAX_IMAGES = 12  # images of each kind of defect, of examples and of pairs

_SUSPICIOUS_COLOR: Color = (255, 60, 40)


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
    height, width = image.shape[-2:]
    names, ids = inspection.categories, [*inspection.categories]
    marks = [
        Mark(row["bbox"], names[row["category_id"]] if len(ids) > 1 else "",
             category_color(ids.index(row["category_id"]) + 1), row.get("segmentation"))
        for row in objects
    ]  # fmt: skip
    if suspicious is None:
        drawn = draw_window(image, (0, 0, width, height), marks, _SIDE, tags=None)
    else:
        mark = Mark(suspicious, "", _SUSPICIOUS_COLOR)
        windows = (0, 0, width, height), crop_window(suspicious, height, width)
        whole, inset = (draw_window(image, window, [mark], _SIDE) for window in windows)
        drawn = join_images([[whole, inset]])
    return {"source": jpeg(drawn), "text": text}
