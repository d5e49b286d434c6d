"""Tables of docs/model_zoo.md that are made from what is kept beside this file: published numbers,
and what was compared live with detectron2."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

from torchvision.models import detection, get_model_weights

from tests.conversion.detectron2_live import RECORD
from tests.conversion.torchvision_models import TORCHVISION

PUBLISHED = Path(__file__).with_name("published_numbers.csv")
# Where the numbers stand, and of which pictures of COCO they are.
_SOURCES = {
    "detectron2": ("[MODEL_ZOO.md](https://github.com/facebookresearch/detectron2/blob/main/"
                   "MODEL_ZOO.md), commit 02b5c4e", "val2017"),
    "detectron2's Detectron1-Comparisons": (
        "[README.md](https://github.com/facebookresearch/detectron2/blob/main/configs/"
        "Detectron1-Comparisons/README.md)", "val2017"),
    "detectron2's ViTDet": ("[README.md](https://github.com/facebookresearch/detectron2/blob/main/"
                            "projects/ViTDet/README.md)", "val2017"),
    "mmdetection": ("the `metafile.yml` of each family in its [configs](https://github.com/open-mmlab/"
                    "mmdetection/tree/v2.28.2/configs), a choice", "val2017"),
    "torchvision": ("the `meta` of its `Weights`, version 0.29", "val2017"),
    "maskrcnn-benchmark": ("[MODEL_ZOO.md](https://github.com/facebookresearch/maskrcnn-benchmark/"
                           "blob/main/MODEL_ZOO.md)", "2014 minival"),
    "Detectron": ("[MODEL_ZOO.md](https://github.com/facebookresearch/Detectron/blob/main/"
                  "MODEL_ZOO.md), commit 04155a0", "2014 minival, which is val2017"),
}  # fmt: skip


def live_section() -> str:
    """What `detectron2_live.py` found."""
    return _LIVE_HEAD + "".join(_live_rows())


def published_section() -> str:
    """Published numbers of every family that loads."""
    sources = "".join(
        f"- {name}: {place}; COCO {pictures}.\n" for name, (place, pictures) in _SOURCES.items()
    )
    return _PUBLISHED_HEAD.format(sources=sources) + "".join(_published_rows())


def _live_rows() -> Iterator[str]:
    for name, found in json.loads(RECORD.read_text()).items():
        numbers = [f"{found[key]:.1g}" if found[key] else "" for key in ("box", "score", "mask")]
        cells = [name, str(found["count"]), str(found["unmatched"]), *numbers]
        yield "| " + " | ".join([*cells, found["date"], found["versions"]]) + " |\n"


def _published_rows() -> Iterator[str]:
    with PUBLISHED.open(newline="") as file:
        rows = [tuple(row.values()) for row in csv.DictReader(file)]
    for framework, model, weights, *numbers in [*rows, *torchvision_rows()]:
        yield f"| {framework} | {model} | `{weights}` | " + " | ".join(numbers) + " |\n"


def torchvision_rows() -> Iterator[tuple[str, ...]]:
    """Those of torchvision's weights that load, with the numbers that it keeps with them."""
    for name in TORCHVISION:
        assert hasattr(detection, name)
        for weights in get_model_weights(name):
            numbers = weights.meta["_metrics"]["COCO-val2017"]
            box, mask, keypoint = (numbers.get(f"{kind}_map", "") for kind in ("box", "mask", "kp"))
            yield (
                "torchvision",
                name,
                f"torchvision://{weights}",
                str(box),
                str(mask),
                str(keypoint),
            )


_LIVE_HEAD = """
## detectron2's newer models beside its own code

These run in detectron2 itself, built from its commit 02b5c4e, and here: each by its own config, at
full width, with weights made from parameter names and the last layers scaled so that scores spread.
Two photographs of COCO, resized to 320 pixels by each its own way (and for ViTDet padded to 1024
x 1024), one after the other, in float32 on a CPU; differences as above, of masks those of their
probabilities. The two that are unmatched are the hundredth of a picture in either, the last that
is kept: their scores, 0.86862 and 0.86855, are nearer than rounding. `DETLITE_TEST_DATA=<folder>
python tests/conversion/detectron2_live.py` measures all anew where detectron2 can be imported.

| model | detections | unmatched | box | score | mask | date | versions |
|---|---|---|---|---|---|---|---|
"""
_PUBLISHED_HEAD = """
## Published numbers

AP in percent as the authors of the weights published it. **Nothing in this table was measured
here**; it says what to expect of a model whose weights load. Each number is read from its source:

{sources}
Of FBNet maskrcnn-benchmark publishes neither weights nor AP.

| framework | model | `MODEL.WEIGHT` | box AP | mask AP | keypoint AP |
|---|---|---|---|---|---|
"""
