"""Test the sentences that a report starts with."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pycocotools.coco import COCO

from detlite.apps.report.analysis.bootstrap import sample_images
from detlite.apps.report.analysis.detection_analysis import DetectionAnalysis
from detlite.apps.report.runs import Run, RunAnalysis
from detlite.apps.report.verdict import comparison, rank, verdict
from detlite.config import load_config
from detlite.evaluation import Results
from tests.builders import coco_content, coco_detection, coco_object
from tests.evaluation.synthetic_detections import make_coco, synthetic_dataset


def describe(
    keep: float = 1, images: int = 16, opts: Sequence[Any] = ("SOLVER.MAX_ITER", 100), **run: Any
) -> dict[str, str]:
    """Describe a run with a fraction of synthetic detections."""
    coco, detections = synthetic_dataset(0, images=images)
    kept = detections[: round(keep * len(detections))]
    return verdict(analyze("cells", coco, kept, opts, **run))


def analyze(
    name: str, coco: COCO, rows: list[dict[str, Any]], opts: Sequence[Any] = (), **run: Any
) -> RunAnalysis:
    """Analyze a run with these results."""
    results, images = Results.from_coco(rows, ["bbox"]), coco.dataset["images"]
    samples = sample_images(len(images), 100, seed=0)
    analysis = DetectionAnalysis(coco, results, "bbox", samples)
    cfg = load_config(None, ["SOLVER.IMS_PER_BATCH", 4, "MODEL.DEVICE", "cpu", *opts])
    described = Run(**{"name": name, "path": Path("output/cells"), "cfg": cfg, **run})
    dataset: Any = images  # only its length counts
    return RunAnalysis(described, dataset, coco, results, {"bbox": analysis})


def curve(count: int, last: float = 1.0) -> list[dict[str, Any]]:
    """Return the lines of a run with a loss of 1, or of `last` in the last fifth."""
    return [{"iteration": n, "loss": last if n > 0.8 * count else 1.0} for n in range(1, count + 1)]


def test_result_and_its_basis() -> None:
    result = describe(lines=curve(100), train_images=20)
    assert re.fullmatch(r"AP [\d.]+ % for boxes", result["headline"])
    assert "of its detections are right" in result["meaning"]
    assert re.fullmatch(
        r"Measured on 16 images with \d+ objects, after 100 training steps of 4 images \(20 "
        r"training images\)\.", result["basis"],
    )  # fmt: skip
    assert " detects 0." in describe(keep=0.01, images=60)["meaning"]  # not 0 %
    assert describe()["basis"].endswith(" objects.")  # of a test


# From random weights on a CPU, 20 images need at least 400 steps.
MINUTES = {"train_images": 20, "opts": ("SOLVER.MAX_MINUTES", 15)}


@pytest.mark.parametrize(
    ("run", "step"),
    [
        ({"lines": curve(60)}, "The run ended after 60 of 100 steps. Continue it: detlite train "
         "--output output/cells --resume"),
        ({"lines": curve(100, last=0.8)},
         "Train longer: raise SOLVER.MAX_ITER (100). The loss fell by 20 % in the last fifth."),
        ({"lines": curve(40), **MINUTES},
         "Train longer, with --minutes 150. The run had 40 of 400 recommended steps."),
        ({"lines": curve(300), **MINUTES}, ""), ({"lines": curve(100)}, ""),
        ({"lines": curve(60), "opts": ("SOLVER.PATIENCE", 3, "SOLVER.BEST_METRIC", "bbox/AP")},
         ""),  # it stopped early, but was not interrupted
    ],
)  # fmt: skip
def test_next_step(run: dict[str, Any], step: str) -> None:
    assert describe(**run)["next_step"] == step


def test_the_better_run_is_named_with_the_difference() -> None:
    coco, rows = synthetic_dataset(0, images=40)
    few, all_rows = analyze("few", coco, rows[: len(rows) // 5]), analyze("all", coco, rows)
    same = analyze("same", coco, rows)
    best, *_ = ranked = rank([few, all_rows, same])
    equal, better = comparison(ranked)
    points = 100 * (all_rows.analyses["bbox"].metrics["AP"] - few.analyses["bbox"].metrics["AP"])
    assert best is all_rows
    assert better.startswith(f"all is better than few by {points:.1f} points of AP for boxes (+")
    assert equal.startswith("The difference between all and same is noise: 0.0 points of AP for")


def test_images_without_results(tmp_path: Path) -> None:
    """A file of results may lack images; a run has detected in all of them."""
    (tmp_path / "results.json").touch()
    boxes = [[30, 10, 20, 20], [60, 10, 20, 20]]
    objects = [coco_object(box, image=image) for image in (1, 2, 4) for box in boxes]
    coco = make_coco(coco_content(objects, images=(1, 2, 3, 4)))
    rows = [coco_detection(boxes[0], 0.9)]
    file = analyze("file", coco, rows, path=tmp_path / "results.json")
    assert verdict(file)["basis"] == (
        "Measured on 4 images with 6 objects. There are no results for 2 of 4 images, so their 4 "
        "objects count as missed."
    )
    assert "no results" not in verdict(analyze("run", coco, rows))["basis"]


def test_the_precision_has_an_interval() -> None:
    """All 22 detections are right: Wilson's interval starts at n / (n + 1.96^2)."""
    boxes = [[30 * k, 10, 20, 20] for k in range(22)]
    coco = make_coco(coco_content([coco_object(box) for box in boxes], size=(60, 800)))
    one = analyze("cells", coco, [coco_detection(box, 0.9) for box in boxes])
    meaning = verdict(one)["meaning"]
    assert verdict(one)["unlabeled"] == 0
    assert "100 % of its detections are right (85 to 100 % with other images)." in meaning


def test_no_detections() -> None:
    result = describe(keep=0, lines=curve(100))
    assert result["meaning"].startswith("The model detects none of the ")
    assert result["next_step"].startswith("Train longer: raise SOLVER.MAX_ITER (100). If that does")


def test_images_without_annotations() -> None:
    coco, rows = synthetic_dataset(0, images=16)
    unlabeled = {row["image_id"] for row in coco.dataset["annotations"][:1]}
    objects = [row for row in coco.dataset["annotations"] if row["image_id"] not in unlabeled]
    text = verdict(analyze("cells", make_coco({**coco.dataset, "annotations": objects}), rows))
    assert text["unlabeled"] == 2
