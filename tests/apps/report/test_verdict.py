"""Test the sentences that a report starts with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools.coco import COCO

from detlite.apps.report.analysis.detection_analysis import analyze_detections
from detlite.apps.report.runs import Run, RunAnalysis
from detlite.apps.report.verdict import Verdict, verdict
from detlite.config import load_config
from detlite.evaluation import Results
from tests.evaluation.synthetic_detections import make_coco, synthetic_dataset


def describe(
    keep: float = 1, images: int = 16, opts: Sequence[Any] = ("SOLVER.MAX_ITER", 100), **run: Any
) -> Verdict:
    """Describe a run with a fraction of synthetic detections."""
    coco, detections = synthetic_dataset(0, images=images)
    return describe_results(coco, detections[: round(keep * len(detections))], opts, **run)[0]


def describe_results(
    coco: COCO, rows: list[dict[str, Any]], opts: Sequence[Any] = (), **run: Any
) -> tuple[Verdict, float]:
    """Describe a run with these results; return also their AP."""
    results, images = Results.from_coco(rows, ["bbox"]), coco.dataset["images"]
    analysis = analyze_detections(coco, results, "bbox", np.ones((1, len(images)), np.uint8))
    cfg = load_config(None, ["SOLVER.IMS_PER_BATCH", 4, "MODEL.DEVICE", "cpu", *opts])
    described = Run("cells", Path("output/cells"), cfg, **run)
    dataset: Any = images  # only its length counts
    analyzed = RunAnalysis(described, dataset, coco, results, {"bbox": analysis})
    return verdict(analyzed), analysis.metrics["AP"]


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
    run = {"train_images": 20, "opts": ("SOLVER.MAX_MINUTES", 15)}
    result = describe(lines=curve(40), **run)
    assert result.basis.endswith(". 15 minutes allowed 40 of 400 recommended steps.")
    assert result.next_step == (
        "Train longer: raise SOLVER.MAX_MINUTES (15.0). The run had 40 of 400 recommended steps."
    )
    assert "recommended" not in describe(lines=curve(300), **run).next_step


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
        ({"lines": curve(60), "opts": ("SOLVER.PATIENCE", 3, "SOLVER.BEST_METRIC", "bbox/AP")},
         ""),  # it stopped early, but was not interrupted
    ],
)  # fmt: skip
def test_next_step(run: dict[str, Any], step: str) -> None:
    assert describe(**run).next_step == step


def test_no_detections() -> None:
    result = describe(keep=0, lines=curve(100))
    assert result.meaning.startswith("The model detects none of the ")
    assert result.next_step.startswith("Train longer: raise SOLVER.MAX_ITER (100). If that does")


def test_images_without_annotations() -> None:
    """Both numbers are shown if detections on unlabeled images lower the AP."""
    coco, rows = synthetic_dataset(0, images=16)
    images = coco.dataset["images"]
    labeled = {image["id"] for image in images[5:]}
    objects = [row for row in coco.dataset["annotations"] if row["image_id"] in labeled]
    content = dict(coco.dataset) | {"annotations": objects}
    own = [row for row in rows if row["image_id"] in labeled]
    nothing, labeled_ap = describe_results(make_coco(content | {"images": images[5:]}), own)
    result, ap = describe_results(make_coco(content), rows)
    assert nothing.unlabeled == ""
    assert ap < labeled_ap - 0.01
    text = result.unlabeled
    assert text.startswith("5 images without annotations: every detection there counts as wrong.")
    assert f"On the other images alone, the AP is {100 * labeled_ap:.1f} % for boxes." in text
