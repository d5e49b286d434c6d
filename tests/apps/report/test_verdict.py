"""Test the sentences that a report starts with."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detlite.apps.report.analysis.detection_analysis import analyze_detections
from detlite.apps.report.runs import Run, RunAnalysis
from detlite.apps.report.verdict import Verdict, verdict
from detlite.config import load_config
from detlite.evaluation import Results
from tests.evaluation.synthetic_detections import make_coco, synthetic_dataset


def describe(keep: float = 1, minutes: float = 0, images: int = 16, **run: Any) -> Verdict:
    """Describe a run with a fraction of synthetic detections."""
    coco, detections = synthetic_dataset(0, images=images)
    kept = detections[: round(keep * len(detections))]
    results = Results.from_coco(kept, ["bbox"])
    analysis = analyze_detections(coco, results, "bbox", np.ones((1, images), np.uint8))
    length = ["SOLVER.MAX_MINUTES", minutes] if minutes else ["SOLVER.MAX_ITER", 100]
    opts = ["SOLVER.IMS_PER_BATCH", 4, "MODEL.DEVICE", "cpu", *length]
    cfg = load_config(None, opts)
    described = Run("cells", Path("output/cells"), cfg, **run)
    dataset: Any = coco.dataset["images"]  # only its length counts
    return verdict(RunAnalysis(described, dataset, coco, results, {"bbox": analysis}))


def curve(count: int, last: float = 1.0) -> list[dict[str, Any]]:
    """Return the lines of a run with a loss of 1, or of `last` in the last fifth."""
    return [{"iteration": n, "loss": last if n > 0.8 * count else 1.0} for n in range(1, count + 1)]


def test_result_and_its_basis() -> None:
    result = describe(lines=curve(100), train_images=20)
    assert result.headline.startswith("AP ")
    assert result.headline.endswith(" % for boxes")
    assert "of its detections are right" in result.meaning
    assert result.basis.startswith("Measured on 16 images with ")
    assert result.basis.endswith(
        "objects, after 100 training steps of 4 images (20 training images)."
    )
    assert result.next_step == ""
    assert " detects 0." in describe(keep=0.01, images=60).meaning  # not 0 %
    assert describe().basis.endswith(" objects.")  # of a test


def test_steps_of_a_run_of_some_minutes() -> None:
    """From random weights on a CPU, 20 images need at least 400 steps."""
    result = describe(lines=curve(40), train_images=20, minutes=15)
    assert result.basis.endswith(". 15 minutes allowed 40 of 400 recommended steps.")
    assert result.next_step == (
        "Train longer: raise SOLVER.MAX_MINUTES (15.0). The run had 40 of 400 recommended steps."
    )
    assert "recommended" not in describe(lines=curve(300), train_images=20, minutes=15).next_step


@pytest.mark.parametrize(
    ("run", "step"),
    [
        ({"lines": curve(60)}, "The run ended after 60 of 100 steps. Continue it: detlite train "
         "--output output/cells --resume"),
        ({"lines": curve(100, last=0.8)},
         "Train longer: raise SOLVER.MAX_ITER (100). The loss fell by 20 % in the last fifth."),
        ({"lines": curve(100), "train_images": 1000, "keep": 0.2},
         "Train longer: raise SOLVER.MAX_ITER (100). It has seen each training image only 0.4 "
         "times on average."),
    ],
)  # fmt: skip
def test_next_step(run: dict[str, Any], step: str) -> None:
    assert describe(**run).next_step == step


def test_no_detections() -> None:
    result = describe(keep=0, lines=curve(100))
    assert result.meaning.startswith("The model detects none of the ")
    assert result.next_step.startswith("Train longer: raise SOLVER.MAX_ITER (100). If that does")


def test_stopping_early_is_not_an_interruption() -> None:
    cfg = load_config(None, ["SOLVER.PATIENCE", 3, "SOLVER.BEST_METRIC", "bbox/AP"])
    coco, rows = synthetic_dataset(0, images=16)
    results = Results.from_coco(rows, ["bbox"])
    analysis = analyze_detections(coco, results, "bbox", np.ones((1, 16), np.uint8))
    run = replace(Run("cells", Path("cells"), cfg), lines=curve(60))
    dataset: Any = coco.dataset["images"]
    assert verdict(RunAnalysis(run, dataset, coco, results, {"bbox": analysis})).next_step == ""


def test_images_without_annotations() -> None:
    """Both numbers are shown if detections on unlabeled images lower the AP."""
    coco, rows = synthetic_dataset(0, images=16)
    unlabeled = [row["id"] for row in coco.dataset["images"][:5]]
    content = dict(coco.dataset)
    content["annotations"] = [
        row for row in content["annotations"] if row["image_id"] not in unlabeled
    ]
    content["images"] = content["images"][5:]
    values = []
    for images in (content["images"], coco.dataset["images"]):
        truth = make_coco(content | {"images": images})
        kept = [row for row in rows if row["image_id"] in truth.imgs]
        results = Results.from_coco(kept, ["bbox"])
        counts = np.ones((1, len(images)), np.uint8)
        analysis = analyze_detections(truth, results, "bbox", counts)
        run, dataset = Run("cells", Path("cells"), load_config(None)), images
        dataset_of: Any = dataset
        result = verdict(RunAnalysis(run, dataset_of, truth, results, {"bbox": analysis}))
        values.append((analysis.metrics["AP"], result.unlabeled))
    (labeled, nothing), (everything, text) = values
    assert nothing == ""
    assert everything < labeled - 0.01
    assert text.startswith("5 images without annotations: every detection there counts as wrong.")
    assert f"On the other images alone, the AP is {100 * labeled:.1f} % for boxes." in text
