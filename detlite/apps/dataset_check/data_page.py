"""HTML page of the defects of data sets, with example images."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from detlite.apps.drawing.detections import draw_detections
from detlite.apps.drawing.html_page import jpeg, render
from detlite.data.errors import DataError
from detlite.data.loading.image_io import read_image
from detlite.data.remote.shards import image_file_of

from .inspection_report import Inspection

_SIDE = 320  # pixels of an image on the page
_MAX_ROWS = 500  # listed defects of each kind
_MAX_IMAGES = 12  # images of each kind of defect, of examples and of pairs

Pair = tuple[tuple[int, int], tuple[int, int]]
BoxAndName = tuple[Any, str]


def data_page(sets: Sequence[Inspection], pairs: Sequence[Pair]) -> str:
    """Return the page as one HTML document that contains its images.

    Args:
        sets: the inspected data sets.
        pairs: nearly identical images, see `near_duplicates`.

    Raises:
        DataError: jinja2 is not installed.
    """
    shown = [
        [_image(sets[index], image_id, [], f"{Path(sets[index].name).name}, image {image_id}")
         for index, image_id in pair]
        for pair in pairs[:_MAX_IMAGES]
    ]  # fmt: skip
    described = [_describe(inspection) for inspection in sets]
    return render("dataset_check.html", sets=described, pairs=shown, pair_count=len(pairs))


def _describe(inspection: Inspection) -> dict[str, Any]:
    balance = inspection.class_balance()
    largest = max((objects for _, objects, _ in balance), default=0) or 1
    refused = len(inspection.refused)
    kinds = Counter((defect.kind, defect.refused) for defect in inspection.defects)
    step = max(1, len(inspection.fingerprinted) // _MAX_IMAGES)
    names = inspection.categories
    examples = []
    for image_id in inspection.fingerprinted[::step][:_MAX_IMAGES]:
        rows = [row for row in inspection.objects if row["image_id"] == image_id]
        boxes = [(row["bbox"], names[row["category_id"]]) for row in rows]
        examples.append(_image(inspection, image_id, boxes, f"image {image_id}"))
    return {
        "file": inspection.name,
        "refused": refused,
        "verdict": f"Training refuses {refused} entries." if refused else "Training accepts it.",
        "numbers": inspection.statistics(),
        "balance": [(*line, round(20 * line[1] / largest, 2)) for line in balance],
        "kinds": [_kind(inspection, kind, count) for kind, count in kinds.items()],
        "examples": examples,
    }


def _kind(inspection: Inspection, kind: tuple[str, bool], count: int) -> dict[str, Any]:
    """Describe the defects of one kind for the template."""
    defects = [defect for defect in inspection.defects if (defect.kind, defect.refused) == kind]
    return {
        "name": kind[0],
        "refused": kind[1],
        "count": count,
        "rows": [(defect.where, defect.problem) for defect in defects[:_MAX_ROWS]],
        "images": [
            _image(
                inspection,
                defect.image_id,
                [] if defect.box is None else [(defect.box, defect.kind)],
                defect.where,
            )
            for defect in defects[:_MAX_IMAGES]
            if defect.image_id in inspection.images
        ],
    }


def _image(
    inspection: Inspection, image_id: int, objects: Sequence[BoxAndName], text: str
) -> dict[str, str]:
    """Return an image with boxes and names for the template; only text if it cannot be read."""
    try:
        image = read_image(image_file_of(inspection.folder, inspection.images[image_id]))
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
