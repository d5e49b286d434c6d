"""Build the HTML page of a report about one or several runs."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from detlite.apps.drawing.html_page import percent, render
from detlite.config import ConfigError
from detlite.evaluation.engine import RECALL_THRESHOLDS

from . import charts
from .analysis.bootstrap import compare, interval
from .analysis.detection_analysis import DetectionAnalysis
from .analysis.error_types import DetectionErrors, confusion_matrix
from .error_gallery import ErrorGallery
from .run_table import run_table
from .runs import TITLES, Run, RunAnalysis, analyze_run
from .verdict import comparison, rank, verdict

_MAX_EXAMPLES = 6
_COMPARED = ("images", "annotations", "categories")  # of two datasets
_IOUS = (("50 % IoU", 0.5), ("75 % IoU", 0.75), ("mean of 50 to 95 %", None))
_MAX_CONFUSED = 12  # categories of a confusion matrix

TemplateData = dict[str, Any]
Analyses = Mapping[str, DetectionAnalysis]  # by the name of the run; the first is the baseline


def report_page(
    runs: Sequence[Run],
    resamples: int = 1000,
    seed: int = 0,
    examples: int = 48,
    progress: Callable[[str], None] = lambda text: None,
) -> str:
    """Return the page as one HTML document that contains its images.

    Args:
        runs: the first run is the baseline for the others.
        resamples, seed: number of bootstrap samples and their seed, see `sample_images`.
        examples: maximum number of drawn false positives, and of missed objects, per dataset.
        progress: called with a line of text before each analysis.

    Raises:
        DataError: a dataset, an image or detections are missing or invalid.
        ConfigError: `build_dataset` raises it, jinja2 is not installed, or a run has no test set or
            detects no objects.
    """
    for run in runs:
        if "bbox" not in run.kinds:
            raise ConfigError(f"{run.path}: the model only proposes regions; a report needs boxes")
        if not run.cfg.DATASETS.TEST:
            raise ConfigError(f"{run.path}: DATASETS.TEST is empty, so there is nothing to report")
    groups: list[list[RunAnalysis]] = []
    for name in dict.fromkeys(name for run in runs for name in run.cfg.DATASETS.TEST):
        for run in runs:
            if name in run.cfg.DATASETS.TEST:
                progress(f"{run.name}: {name}")
                _add_to_group(groups, analyze_run(run, name, resamples, seed))
    return render(
        "report.html",
        runs=runs,
        sections=[
            _section(f"set{n}", group, examples, len(group) == len(runs))
            for n, group in enumerate(groups)
        ],
        table=run_table(runs) if any(run.evaluation for run in runs) else [],
        resamples=resamples,
    )


def _add_to_group(groups: list[list[RunAnalysis]], one: RunAnalysis) -> None:
    """Add an analysis to the group of the same images and labels, whatever their names."""
    for group in groups:
        contents = group[0].coco_gt.dataset, one.coco_gt.dataset
        is_same = all(contents[0][key] == contents[1][key] for key in _COMPARED)
        if is_same and all(analyzed.run is not one.run for analyzed in group):
            group.append(one)
            return
    groups.append([one])


def _section(
    prefix: str, analyzed: Sequence[RunAnalysis], examples: int, has_all_runs: bool
) -> TemplateData:
    best, *_ = ranked = rank(analyzed)
    sections = []
    for kind in TITLES:
        if analyses := {r.run.name: r.analyses[kind] for r in analyzed if kind in r.analyses}:
            sections.append(_metric_section(prefix, kind, analyses))
    galleries = [ErrorGallery(run, math.ceil(examples / len(analyzed))) for run in analyzed]
    name = ", ".join(dict.fromkeys(run.dataset.name for run in analyzed))
    if not has_all_runs:
        name = f"{name} of {', '.join(run.run.name for run in analyzed)}"
    return {
        "id": prefix,
        "name": name,
        "images": len(analyzed[0].dataset),
        "objects": int(analyzed[0].analyses["bbox"].objects.sum()),
        "is_lvis": analyzed[0].dataset.kind == "lvis",
        "comparison": comparison(ranked),
        "best": verdict(best),
        "verdicts": [verdict(run) for run in analyzed],
        "examples": galleries[analyzed.index(best)].examples(min(examples, _MAX_EXAMPLES)),
        "notes": [note for run in analyzed for note in _notes(run)],
        "kinds": sections,
        "by_masks": any("segm" in run.analyses for run in analyzed),
        "false_positives": (
            [error for gallery in galleries for error in gallery.false_positives()],
            sum(gallery.counts[0] for gallery in galleries),
        ),
        "missed": (
            [error for gallery in galleries for error in gallery.missed_objects()],
            sum(gallery.counts[1] for gallery in galleries),
        ),
    }


def _notes(analyzed: RunAnalysis) -> Iterator[str]:
    """Yield a warning for each AP in evaluation.json that is not that of the detections."""
    recorded = analyzed.run.evaluation.get(analyzed.dataset.name, {})
    for kind, analysis in analyzed.analyses.items():
        stated, actual = recorded.get(kind, analysis.metrics).get("AP"), analysis.metrics["AP"]
        first, second = np.array([stated, actual], np.float64)  # NaN for None
        if not np.isclose(first, second, rtol=0, atol=1e-6, equal_nan=True):
            yield (
                f"{analyzed.run.name}: evaluation.json has an AP of {percent(stated)} % for "
                f"{TITLES[kind].lower()}, but its detections have {percent(actual)} %: the "
                "evaluation did not follow COCO's rules, or the files belong to two evaluations."
            )


def _metric_section(prefix: str, kind: str, analyses: Analyses) -> TemplateData:
    """Return the template data for one kind of detections on a dataset.

    Args:
        prefix: prefix of the HTML id.
        kind: a key of TITLES.
        analyses: analysis of each run, by name.
    """
    title, results = TITLES[kind], list(analyses.values())
    samples = [result.bootstrap.metrics() for result in results]
    rows: list[TemplateData] = []
    for metric in samples[0]:  # AR is that of the maximum number of detections
        values = [r.metrics.get(metric, r.precision_recall.ar()) for r in results]
        cells = _cells(values, [sampled[metric] for sampled in samples])
        rows.append({"name": metric, "cells": cells})
    return {
        "id": f"{prefix}-{kind}",
        "title": title,
        "runs": analyses,
        "rows": rows,
        "curves": _curves(title, analyses),
        "categories": _categories(analyses),
        "errors": {run: result.errors for run, result in analyses.items() if result.errors},
        "confusion": [_confusion(run, result, result.errors) for run, result in analyses.items()
                      if result.errors and len(result.names) > 1],
        "calibration": _calibration(title, analyses),
    }  # fmt: skip


def _cells(values: Sequence[float | None], samples: Sequence[np.ndarray]) -> list[TemplateData]:
    """Return each run's value of a metric, with its interval and its difference from the first."""
    cells = []
    for index, (value, sample) in enumerate(zip(values, samples, strict=True)):
        change, style = compare(values[0], value, samples[0], sample) if index else None, ""
        if change is not None and not change.is_noise:
            style = "better" if change.value > 0 else "worse"
        bounds = interval(value, sample)
        cells.append({"value": value, "bounds": bounds, "change": change, "style": style})
    return cells


def _curves(title: str, analyses: Analyses) -> str:
    """Return a chart of precision and recall: of each run, or of one run at several IoUs."""
    several, curves = len(analyses) > 1, {}
    for run, result in analyses.items():
        for label, iou in [("50 % IoU", 0.5)] if several else _IOUS:
            curve = result.precision_recall.precision_curve(iou)
            if curve is not None:
                name = f"{run}, {label}" if several else label
                curves[name] = 100 * RECALL_THRESHOLDS, 100 * curve
    return charts.chart(
        title, curves, xlabel="recall: detected objects (%)",
        ylabel="precision: correct detections (%)", xlim=(0, 100), ylim=(0, 103),
    ) if curves else ""  # fmt: skip


def _categories(analyses: Analyses) -> list[TemplateData]:
    """Return the AP of each category in ascending order, categories without objects last."""
    first, *_ = results = list(analyses.values())
    samples = [result.bootstrap.by_category() for result in results]
    rows = []
    for k, (name, objects) in enumerate(zip(first.names, first.objects.tolist(), strict=True)):
        values = [result.metrics["per_category"].get(name) for result in results]
        cells = _cells(values, [sampled[:, k] for sampled in samples])
        rows.append({"name": name, "objects": objects, "ap": values[0], "cells": cells})
    return sorted(rows, key=lambda row: (row["ap"] is None, row["ap"]))


def _calibration(title: str, analyses: Analyses) -> str:
    """Return a chart of the precision by score, with the diagonal of perfect calibration."""
    curves: dict[str, Any] = {}
    for run, result in analyses.items():
        bins, filled = result.calibration, result.calibration.counts > 0
        curves[run] = 100 * bins.scores[filled], 100 * bins.precision[filled]
    return charts.chart(
        f"Precision by score: {title.lower()}", curves | {"perfect": ([0, 100], [0, 100])},
        marker="o", xlabel="mean score (%)", ylabel="precision (%)", xlim=(0, 103), ylim=(-3, 103),
    )  # fmt: skip


def _confusion(run: str, analysis: DetectionAnalysis, errors: DetectionErrors) -> TemplateData:
    """Return the confusion matrix of the most confused categories at the threshold."""
    min_score = analysis.threshold.score if analysis.threshold else 0.0
    matrix, names = confusion_matrix(errors.matches, min_score), analysis.names
    count = len(names)
    confused = matrix[:count, :count].copy()
    np.fill_diagonal(confused, 0)
    weight = confused.sum(axis=0) + confused.sum(axis=1)
    totals = matrix.sum(axis=1)
    kept = np.sort(np.argsort(-weight, kind="stable")[:_MAX_CONFUSED])
    indices, labels = np.append(kept, count), [names[k] for k in kept]
    counts = matrix[np.ix_(indices, indices)].tolist()
    return {
        "run": run,
        "threshold": f"{min_score:.2f}",
        "header": [*labels, "missed"],
        "rows": list(zip([*labels, "no label"], counts, totals[indices].tolist(), strict=True)),
        "hidden": count - len(kept),
    }  # fmt: skip
