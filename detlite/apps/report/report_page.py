"""The page of a report: what runs reached, where they fail, and whether they differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pycocotools.coco import COCO

from detlite.apps.drawing.page import render
from detlite.data import build_dataset
from detlite.data.datasets.coco import CocoDataset
from detlite.evaluation.results import Results

from . import charts
from .analysis.bootstrap import sample_images
from .analysis.detection_analysis import DetectionAnalysis, analyze_detections
from .analysis.error_types import ERROR_TYPES
from .gallery import Gallery, Mistake
from .history import history
from .metric_sections import Part, describe
from .runs import LoggedRun
from .text import TITLES, percent

_MOST_BYTES = 8_000_000  # of pictures
_FEW_IMAGES = 50


@dataclass(frozen=True, eq=False)
class Measured:
    """A run on a data set."""

    run: LoggedRun
    dataset: CocoDataset
    coco_gt: COCO
    results: Results
    analyses: dict[str, DetectionAnalysis]


def report_page(
    runs: Sequence[LoggedRun],
    draws: int = 1000,
    seed: int = 0,
    pictures: int = 48,
    progress: Callable[[str], None] = lambda text: None,
) -> str:
    """The HTML of a report; pictures are in it.

    Args:
        runs: the first is the one that others are compared with.
        draws, seed: of images, for intervals, see `sample_images`.
        pictures: at most so many wrong detections, and so many missed objects, of a data set.
        progress: is told what is being done.

    Raises:
        DataError: a data set, a picture or detections are missing or broken, or jinja2 is.
        ConfigError: as from `build_dataset`.
    """
    names = list(dict.fromkeys(name for run in runs for name in run.cfg.DATASETS.TEST))
    sections: list[Part] = []
    for name in names:
        measured = []
        for run in (run for run in runs if name in run.cfg.DATASETS.TEST):
            progress(f"{run.name}: {name}")
            measured.append(_measure(run, name, draws, seed))
        sections.append(_section(f"set{len(sections)}", name, measured, pictures))
    return render(
        "report.html",
        runs=[_run(n, run) for n, run in enumerate(runs)],
        sections=sections,
        history=history(runs),
        draws=draws,
    )


def _run(number: int, run: LoggedRun) -> Part:
    return {"name": run.name, "folder": str(run.folder), "colour": charts.style(number)[0]}


def _measure(run: LoggedRun, name: str, draws: int, seed: int) -> Measured:
    dataset = build_dataset(run.cfg, name, train=False)
    coco_gt, results = dataset.coco_gt(), run.results(name)
    drawn = sample_images(len(dataset), draws, seed)
    most, sigmas = run.cfg.MODEL.ROI_HEADS.DETECTIONS_PER_IMG, run.cfg.TEST.KEYPOINT_OKS_SIGMAS
    analyses = {
        kind: analyze_detections(coco_gt, results, kind, drawn, most, sigmas) for kind in run.kinds
    }
    return Measured(run, dataset, coco_gt, results, analyses)


def _section(prefix: str, name: str, measured: Sequence[Measured], pictures: int) -> Part:
    first = measured[0]
    alike = [
        one.coco_gt.dataset["images"] == first.coco_gt.dataset["images"]
        and one.coco_gt.dataset["annotations"] == first.coco_gt.dataset["annotations"]
        for one in measured
    ]
    kinds = [kind for kind in TITLES if any(kind in one.analyses for one in measured)]
    shown = []
    for kind in kinds:
        having = [(one, same) for one, same in zip(measured, alike, strict=True)
                  if kind in one.analyses]  # fmt: skip
        found = {one.run.name: one.analyses[kind] for one, _ in having}
        shown.append(describe(prefix, kind, found, [same for _, same in having]))
    wrong, missed = _galleries(measured, pictures)
    return {
        "id": prefix,
        "name": name,
        "images": len(first.dataset),
        "objects": int(first.analyses["bbox"].objects.sum()),
        "notes": _notes(name, measured, alike),
        "kinds": shown,
        "by_masks": any("segm" in one.analyses for one in measured),
        "wrong": wrong,
        "missed": missed,
    }


def _notes(name: str, measured: Sequence[Measured], alike: Sequence[bool]) -> list[str]:
    """What a reader must know before trusting the numbers."""
    notes = []
    count = len(measured[0].dataset)
    if count < _FEW_IMAGES:
        notes.append(
            f"{count} pictures are few: the intervals below are wide, and still too narrow. "
            "Measure on more before you decide anything by them."
        )
    if measured[0].dataset.kind == "lvis":
        notes.append(
            "LVIS labels only some categories in each picture: here, where all are counted as COCO "
            "does, a wrong detection may well be right."
        )
    for one, same in zip(measured, alike, strict=True):
        if not same:
            notes.append(
                f"{one.run.name} was measured on other pictures or labels than "
                f"{measured[0].run.name}: differences between the two are not shown."
            )
        stated = one.run.evaluation.get(name, {})
        for kind, found in one.analyses.items():
            given, here = stated.get(kind, {}).get("AP"), found.metrics["AP"]
            if kind in stated and not _agree(given, here):
                notes.append(
                    f"{one.run.name}: evaluation.json has an AP of {percent(given)} % for "
                    f"{TITLES[kind].lower()}, but its detections have {percent(here)} %: measured "
                    "by other rules than COCO's, or files of two evaluations lie together."
                )
        others = [kind for kind in stated if kind not in one.analyses and kind != "loss"]
        if others:
            values = "; ".join(f"{kind} {_values(stated[kind])}" for kind in others)
            notes.append(f"{one.run.name}: evaluation.json also has {values}.")
    return notes


def _agree(first: float | None, second: float | None) -> bool:
    if first is None or second is None:
        return first is second
    return math.isclose(first, second, rel_tol=0, abs_tol=1e-6)


def _values(row: dict[str, Any]) -> str:
    numbers = {name: value for name, value in row.items() if isinstance(value, float)}
    return ", ".join(f"{name} {percent(value)} %" for name, value in numbers.items())


def _galleries(measured: Sequence[Measured], pictures: int) -> tuple[Part, Part]:
    """Wrong detections and missed objects of all runs, the pictures bounded in all."""
    most = math.ceil(pictures / len(measured))
    lists: tuple[list[tuple[str, Mistake]], list[tuple[str, Mistake]]] = ([], [])
    wrong = missed = 0
    for one in measured:
        kind = "segm" if "segm" in one.analyses else "bbox"
        gallery = Gallery(one.dataset, one.coco_gt, one.results, one.analyses[kind], most)
        for shown, found in zip(lists, (gallery.false_positives(), gallery.misses()), strict=True):
            shown += [(one.run.name, mistake) for mistake in found]
        counts = gallery.counts()
        wrong, missed = wrong + counts[0], missed + counts[1]
    runs = [one.run.name for one in measured]
    return _gallery(runs, lists[0], wrong), _gallery(runs, lists[1], missed)


def _gallery(runs: Sequence[str], found: Sequence[tuple[str, Mistake]], count: int) -> Part:
    left = _MOST_BYTES // 2
    kept: list[Part] = []
    for run, mistake in found:
        left -= len(mistake.source)
        if left < 0:
            break
        kept.append({"run": run, "mistake": mistake})
    return {
        "pictures": kept,
        "count": count,
        "runs": runs if len(runs) > 1 else [],
        "categories": sorted({one["mistake"].category for one in kept}),
        "kinds": [kind for kind in ERROR_TYPES if any(one["mistake"].kind == kind for one in kept)],
    }
