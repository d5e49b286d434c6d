"""Converted weights against what their own framework makes of them.

`python tests/conversion/fidelity.py > docs/model_zoo.md` compares everything and writes the table.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from tests.conversion.differences import Difference
from tests.conversion.mmdetection_models import CONFIGS, OUTPUTS
from tests.conversion.mmdetection_recordings import compare_recorded
from tests.conversion.recordings import GOLDEN, Golden, load_recipe
from tests.conversion.torchvision_models import (
    TORCHVISION,
    compare_step,
    compare_torchvision,
    predictor_of,
    torchvision_model,
    training_batch,
)
from tests.conversion.zoo_tables import live_section, published_section


def main() -> None:
    """Writes docs/model_zoo.md to the standard output."""
    root = Path(__file__).parents[2]
    folder = root / os.environ.get("DETLITE_TEST_DATA", "../shared") / "golden"
    torch.set_num_threads(1)
    print(_HEAD, end="")
    for name, source in GOLDEN.items():
        golden = Golden(folder, name)
        predictor = golden.predictor()
        for case in ("A", "AB_raw", "CD_raw"):
            print(_row(name, source, _CASES[case], golden.compare(predictor, case)), flush=True)
    recipe = load_recipe(folder)
    for name in TORCHVISION:
        reference = torchvision_model(name, recipe)
        predictor = predictor_of(reference)
        total = Difference()
        for key in "AB":
            picture = recipe.load_picture(key)[0]
            total.merge(compare_torchvision(reference, predictor, picture))
        print(_row(name, "torchvision", "two pictures, end to end", total), flush=True)
    recorded = np.load(OUTPUTS)
    for name in CONFIGS:
        found = compare_recorded(name, recorded)
        print(_row(name, "mmdetection", "two small pictures, end to end", found), flush=True)
    print(_STEPS_HEAD, end="")
    sizes = {"E": (96, 128), "F": (128, 96)}
    few = ["MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", 32]
    for name in TORCHVISION:
        options = {"box_batch_size_per_image": 32} if "rcnn" in name else {}
        reference = torchvision_model(name, recipe, min_size=96, **options)
        predictor = predictor_of(reference, few)
        batch = training_batch(recipe, sizes, classes=2 if "keypoint" in name else 91)
        for dtype in (torch.float64, torch.float32):
            step = compare_step(reference, predictor, *batch, dtype)
            cells = [name, str(dtype).removeprefix("torch."), str(step.parameters)]
            cells += [f"{step.losses:.1g}", f"{step.gradients:.1g}"]
            print("| " + " | ".join(cells) + " |", flush=True)
    print(live_section() + published_section(), end="")


_CASES = {
    "A": "one picture, end to end",
    "AB_raw": "two pictures, batched, without the resize",
    "CD_raw": "two small pictures, batched, without the resize",
}
_HEAD = """\
# Faithful to other frameworks

Weights of other frameworks, converted, against what those frameworks make of them. All weights are
made from parameter names, so that nothing needs to be downloaded; detections are matched one to
one. Of detectron2 and maskrcnn-benchmark the outputs were recorded, torchvision runs beside.
Of detectron2's other models, whose outputs are not recorded, a second implementation runs beside in
`tests/conversion/test_detectron2_models.py`, in float64 and narrow: its boxes are the same to 1e-3
pixel. So are those of ViTDet's Mask R-CNN and cascade in `tests/conversion/detectron2/test_vitdet.py`. ViTDet and
its other newer models run beside in detectron2, at full width,
[below](#detectron2s-newer-models-beside-its-own-code).
Of mmdetection 3.3.0, with mmcv 2.1.0's own operators on the CPU, the outputs of narrow models were
recorded by `tests/conversion/mmdetection_models.py`. Beside it, live, at full width and on pictures
of COCO of which 100 detections each were compared (2026-11-22, torch 2.15.0), all were matched, with
boxes to 4e-4 pixel and scores to 4e-5: `mask-rcnn_r50`, `faster-rcnn_r50-caffe`, `retinanet_r50`,
`retinanet_r50-caffe` and `cascade-mask-rcnn_r50` on two pictures, `mask-rcnn_x101-32x8d` on one. The
files that it publishes were not at hand.

Differences are the largest found: of box corners in pixels; of scores; of mask probabilities; of
pasted masks, the pixels that differ over the area of all masks of a picture; of keypoints in
pixels; of keypoints' scores, logits of torchvision and probabilities of detectron2. A map that is
as high in two places, up to the rounding of its sums, has its keypoint in either, and a box whose
side is a whole number of pixels, up to that rounding, has all its maps enlarged to either size: such
*ties* are counted and left out. A cell is empty where nothing differs, or a model has nothing to
compare.

This page is generated: `python tests/conversion/fidelity.py > docs/model_zoo.md`.

| model | source | compared | detections | unmatched | box | score | mask | pixels | keypoint | keypoint score | ties |
|---|---|---|---|---|---|---|---|---|---|---|---|
"""  # noqa: E501
_STEPS_HEAD = """
## A training step beside torchvision's

Losses and gradients on two small pictures, with what is drawn at random fixed: torchvision's
`torch.randperm` is `torch.arange`, and detlite's random keys fall from the first to the last, so
that both take the first of what there is. Differences are relative: the largest of a loss, and the
largest over parameters of the norm of the gradient's difference over the gradient's norm.

torchvision's weights run on contiguous maps here (`MODEL.MEMORY_FORMAT`), where backbone and
pyramid are equal to the last bit. RoIAlign adds in another order: in float32, behind it, a ReLU may
be open in one and shut in the other. In float64 hardly any is that close to its corner. The targets
that masks are trained on are made in float32, of a float64 model as well.

| model | arithmetic | parameters | losses | gradients |
|---|---|---|---|---|
"""


def _row(name: str, source: str, what: str, found: Difference) -> str:
    numbers = (found.box, found.score, found.mask, found.pixels, found.keypoint,
               found.keypoint_score)  # fmt: skip
    cells = [name, source, what, str(found.count), str(found.unmatched)]
    cells += [f"{number:.1g}" if number else "" for number in numbers]
    return "| " + " | ".join([*cells, str(found.ties)]) + " |"


if __name__ == "__main__":
    main()
