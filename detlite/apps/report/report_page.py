"""Build the HTML page of a report about one or several runs."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from urllib.parse import quote

import numpy as np
from pycocotools.coco import COCO

from detlite.apps.drawing.html_page import percent, render
from detlite.data import build_dataset
from detlite.data.datasets.coco import CocoDataset
from detlite.evaluation.results import Results

from . import charts
from .analysis.bootstrap import sample_images
from .analysis.detection_analysis import DetectionAnalysis, analyze_detections
from .analysis.error_types import ERROR_TYPES
from .error_gallery import ErrorGallery, ErrorImage
from .metric_sections import TITLES, TemplateData, metric_section
from .runs import Run, training_history

_MAX_IMAGE_BYTES = 8_000_000  # of each dataset
_LINKED_FILES = ("curves.png", "detections.png", "log.txt", "config.yaml", "evaluation.json")


@dataclass(frozen=True, eq=False)
class RunAnalysis:
    """Analyses of a run on a dataset, by kind."""

    run: Run
    dataset: CocoDataset
    coco_gt: COCO
    results: Results
    analyses: dict[str, DetectionAnalysis]


def report_page(
    runs: Sequence[Run],
    resamples: int = 1000,
    seed: int = 0,
    examples: int = 48,
    progress: Callable[[str], None] = lambda text: None,
    link_from: Path | None = None,
) -> str:
    """Return the page as one HTML document that contains its images.

    Args:
        runs: the others are compared with the first.
        resamples, seed: of the bootstrap, see `sample_images`.
        examples: maximum number of false positives and of missed objects for each dataset.
        progress: called with a line of text before each analysis.
        link_from: the folder of the page, to link to the files of the runs; None: no links.

    Raises:
        DataError: a dataset, an image or detections are missing or invalid, or jinja2 is missing.
        ConfigError: as from `build_dataset`.
    """
    sections: list[TemplateData] = []
    for name in dict.fromkeys(name for run in runs for name in run.cfg.DATASETS.TEST):
        analyzed = []
        for run in runs:
            if name in run.cfg.DATASETS.TEST:
                progress(f"{run.name}: {name}")
                analyzed.append(_analyze(run, name, resamples, seed))
        sections.append(_section(f"set{len(sections)}", name, analyzed, examples))
    described = [
        {"name": run.name, "path": run.path, "color": charts.COLORS[n % len(charts.COLORS)],
         "files": _links(run, link_from) if link_from else []}
        for n, run in enumerate(runs)
    ]  # fmt: skip
    return render(
        "report.html",
        runs=described,
        sections=sections,
        history=training_history(runs),
        resamples=resamples,
    )


def _links(run: Run, folder: Path) -> list[tuple[str, str]]:
    """Return names and relative addresses of files of a run that people read."""
    return [
        (name, quote(Path(os.path.relpath(run.path / name, folder)).as_posix()))
        for name in _LINKED_FILES
        if (run.path / name).is_file()
    ]


def _analyze(run: Run, name: str, resamples: int, seed: int) -> RunAnalysis:
    dataset = build_dataset(run.cfg, name, train=False)
    coco_gt, results = dataset.coco_gt(), run.results(name)
    samples = sample_images(len(dataset), resamples, seed)
    max_dets, sigmas = run.cfg.MODEL.ROI_HEADS.DETECTIONS_PER_IMG, run.cfg.TEST.KEYPOINT_OKS_SIGMAS
    analyses = {
        kind: analyze_detections(coco_gt, results, kind, samples, max_dets, sigmas)
        for kind in run.kinds
    }
    return RunAnalysis(run, dataset, coco_gt, results, analyses)


def _section(
    prefix: str, name: str, analyzed: Sequence[RunAnalysis], examples: int
) -> TemplateData:
    first = analyzed[0].coco_gt.dataset
    comparable = [
        all(one.coco_gt.dataset[key] == first[key] for key in ("images", "annotations"))
        for one in analyzed
    ]
    sections = []
    for kind in TITLES:
        having = [kind in one.analyses for one in analyzed]
        if any(having):
            analyses = {one.run.name: one.analyses[kind] for one in compress(analyzed, having)}
            same = list(compress(comparable, having))
            sections.append(metric_section(prefix, kind, analyses, same))
    false_positives, missed = _galleries(analyzed, examples)
    return {
        "id": prefix,
        "name": name,
        "images": len(analyzed[0].dataset),
        "objects": int(analyzed[0].analyses["bbox"].objects.sum()),
        "is_lvis": analyzed[0].dataset.kind == "lvis",
        "notes": _notes(name, analyzed, comparable),
        "kinds": sections,
        "by_masks": any("segm" in one.analyses for one in analyzed),
        "false_positives": false_positives,
        "missed": missed,
    }


def _notes(name: str, analyzed: Sequence[RunAnalysis], comparable: Sequence[bool]) -> list[str]:
    """Return warnings about the numbers of runs on a dataset."""
    notes = []
    for one, same in zip(analyzed, comparable, strict=True):
        if not same:
            notes.append(
                f"{one.run.name} was evaluated on other images or labels than "
                f"{analyzed[0].run.name}, so their differences are not shown."
            )
        others = []
        for kind, metrics in one.run.evaluation.get(name, {}).items():
            if kind in one.analyses:
                stated, actual = metrics.get("AP"), one.analyses[kind].metrics["AP"]
                first, second = np.array([stated, actual], np.float64)  # NaN for None
                if not np.isclose(first, second, rtol=0, atol=1e-6, equal_nan=True):
                    notes.append(
                        f"{one.run.name}: evaluation.json has an AP of {percent(stated)} % for "
                        f"{TITLES[kind].lower()}, but its detections have {percent(actual)} %: the "
                        "evaluation did not follow COCO's rules, or the files are of two "
                        "evaluations."
                    )
            elif kind != "loss":
                numbers = ((k, value) for k, value in metrics.items() if isinstance(value, float))
                listed = ", ".join(f"{metric} {percent(value)} %" for metric, value in numbers)
                others.append(f"{kind} {listed}")
        if others:
            notes.append(f"{one.run.name}: evaluation.json also has {'; '.join(others)}.")
    return notes


def _galleries(analyzed: Sequence[RunAnalysis], examples: int) -> tuple[TemplateData, TemplateData]:
    """Return the galleries of false positives and of missed objects of all runs."""
    false_positives: list[tuple[str, ErrorImage]] = []
    missed: list[tuple[str, ErrorImage]] = []
    counts = np.zeros(2, np.int64)
    for one in analyzed:
        analysis = one.analyses["segm" if "segm" in one.analyses else "bbox"]
        max_images = math.ceil(examples / len(analyzed))
        gallery = ErrorGallery(one.dataset, one.coco_gt, one.results, analysis, max_images)
        false_positives += [(one.run.name, image) for image in gallery.false_positives()]
        missed += [(one.run.name, image) for image in gallery.missed_objects()]
        counts += gallery.counts
    runs = [one.run.name for one in analyzed]
    return _gallery(runs, false_positives, counts[0]), _gallery(runs, missed, counts[1])


def _gallery(
    runs: Sequence[str], errors: Sequence[tuple[str, ErrorImage]], count: int
) -> TemplateData:
    sizes = np.cumsum([len(error.source) for _, error in errors])
    kept = errors[: int((sizes <= _MAX_IMAGE_BYTES // 2).sum())]
    kinds = {error.kind for _, error in kept}
    return {
        "images": [{"run": run, "error": error} for run, error in kept],
        "count": count,
        "runs": runs if len(runs) > 1 else [],
        "categories": sorted({error.category for _, error in kept}),
        "kinds": [kind for kind in ERROR_TYPES if kind in kinds],
    }
