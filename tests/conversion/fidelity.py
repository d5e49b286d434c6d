"""Measure how far converted models differ from their own framework.

`python -m tests.conversion.fidelity` prints the rows of the tables in inference.md and
training_step.md of benchmarks/results/fidelity.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from tests.conversion.detection_differences import DetectionDifference
from tests.conversion.mmdetection.recorded_outputs import (
    OUTPUTS,
    compare_recorded,
    recorded_configs,
)
from tests.conversion.recorded_outputs import GOLDEN, Golden, load_recipe
from tests.conversion.torchvision_models import (
    TORCHVISION,
    compare_step,
    compare_torchvision,
    predictor_of,
    torchvision_model,
    training_batch,
)

_CASES = {
    "A": "one image, end to end",
    "AB_raw": "two images, batched, without the resize",
    "CD_raw": "two small images, batched, without the resize",
}


def main() -> None:
    """Measure everything and print the rows."""
    root = Path(__file__).parents[2]
    folder = root / os.environ.get("DETLITE_TEST_DATA", "../shared") / "golden"
    torch.set_num_threads(1)
    for cells in (*inference_rows(folder), *training_step_rows(folder)):
        print("| " + " | ".join(cells) + " |")


def inference_rows(folder: Path) -> Iterator[list[str]]:
    """Compare detections with recorded outputs and with torchvision."""
    for name, source in GOLDEN.items():
        golden = Golden(folder, name)
        predictor = golden.predictor()
        for case, description in _CASES.items():
            yield _row(name, source, description, golden.compare(predictor, case))
    recipe = load_recipe(folder)
    for name in TORCHVISION:
        reference = torchvision_model(name, recipe)
        predictor = predictor_of(reference)
        total = DetectionDifference()
        for key in "AB":
            image = recipe.load_picture(key)[0]
            total.merge(compare_torchvision(reference, predictor, image))
        yield _row(name, "torchvision", "two images, end to end", total)
    recorded = np.load(OUTPUTS)
    for name in recorded_configs():
        difference = compare_recorded(name, recorded)
        yield _row(name, "mmdetection", "two small images, end to end", difference)


def training_step_rows(folder: Path) -> Iterator[list[str]]:
    """Compare losses and gradients of one training step with torchvision."""
    recipe = load_recipe(folder)
    sizes = {"E": (96, 128), "F": (128, 96)}
    few_rois = ["MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", 32]
    for name in TORCHVISION:
        options = {"box_batch_size_per_image": 32} if "rcnn" in name else {}
        reference = torchvision_model(name, recipe, min_size=96, **options)
        predictor = predictor_of(reference, few_rois)
        batch = training_batch(recipe, sizes, classes=2 if "keypoint" in name else 91)
        for dtype in (torch.float64, torch.float32):
            step = compare_step(reference, predictor, *batch, dtype)
            cells = [name, str(dtype).removeprefix("torch."), str(step.parameters)]
            yield [*cells, f"{step.losses:.1g}", f"{step.gradients:.1g}"]


def _row(name: str, source: str, case: str, difference: DetectionDifference) -> list[str]:
    columns = ("box", "score", "mask", "pixels", "keypoint", "keypoint_score")
    numbers = [getattr(difference, column) for column in columns]
    cells = [f"{number:.1g}" if number else "" for number in numbers]
    counts = [str(difference.count), str(difference.unmatched)]
    return [name, source, case, *counts, *cells, str(difference.ties)]


if __name__ == "__main__":
    main()
