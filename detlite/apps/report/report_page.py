"""Build the HTML page of a report about one or several runs."""

import math
from collections.abc import Callable, Sequence
from itertools import compress

import numpy as np

from detlite.apps.drawing.html_page import percent, render
from detlite.config import ConfigError

from . import charts
from .error_gallery import ErrorGallery
from .metric_sections import TemplateData, metric_section
from .run_table import run_table
from .runs import TITLES, Run, RunAnalysis, analyze_run
from .verdict import comparison, rank, verdict

_MAX_EXAMPLES = 6


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
    sections = [_section(f"set{n}", group, examples) for n, group in enumerate(groups)]
    colors = (charts.COLORS[n % len(charts.COLORS)] for n in range(len(runs)))
    return render(
        "report.html",
        runs=list(zip(runs, colors, strict=True)),
        sections=sections,
        table=run_table(runs) if len(runs) > 1 and any(run.evaluation for run in runs) else [],
        resamples=resamples,
    )


def _add_to_group(groups: list[list[RunAnalysis]], one: RunAnalysis) -> None:
    """Add an analysis to the group of the same dataset: of its name, or of its content."""
    for group in groups:
        other = any(analyzed.run is one.run for analyzed in group)
        if not other and (group[0].dataset.name == one.dataset.name or _same_set(group[0], one)):
            group.append(one)
            return
    groups.append([one])


def _same_set(first: RunAnalysis, second: RunAnalysis) -> bool:
    contents = first.coco_gt.dataset, second.coco_gt.dataset
    return all(contents[0][key] == contents[1][key] for key in ("images", "annotations"))


def _section(prefix: str, analyzed: Sequence[RunAnalysis], examples: int) -> TemplateData:
    comparable = [_same_set(analyzed[0], run) for run in analyzed]
    best, *_ = ranked = rank(list(compress(analyzed, comparable)))
    sections = []
    for kind in TITLES:
        has_kind = [kind in run.analyses for run in analyzed]
        if any(has_kind):
            analyses = {run.run.name: run.analyses[kind] for run in compress(analyzed, has_kind)}
            same = list(compress(comparable, has_kind))
            sections.append(metric_section(prefix, kind, analyses, same))
    galleries = [ErrorGallery(run, math.ceil(examples / len(analyzed))) for run in analyzed]
    shown = galleries[analyzed.index(best)].examples(min(examples, _MAX_EXAMPLES))
    false_positives = [error for gallery in galleries for error in gallery.false_positives()]
    missed = [error for gallery in galleries for error in gallery.missed_objects()]
    counts = np.sum([gallery.counts for gallery in galleries], axis=0)
    return {
        "id": prefix,
        "name": ", ".join(dict.fromkeys(run.dataset.name for run in analyzed)),
        "images": len(analyzed[0].dataset),
        "objects": int(analyzed[0].analyses["bbox"].objects.sum()),
        "is_lvis": analyzed[0].dataset.kind == "lvis",
        "comparison": comparison(ranked),
        "best": verdict(best),
        "verdicts": [verdict(run) for run in analyzed],
        "examples": shown,
        "notes": _notes(analyzed, comparable),
        "kinds": sections,
        "by_masks": any("segm" in run.analyses for run in analyzed),
        "false_positives": (false_positives, counts[0]),
        "missed": (missed, counts[1]),
    }


def _notes(analyzed: Sequence[RunAnalysis], comparable: Sequence[bool]) -> list[str]:
    """Return warnings about the metrics of runs on a dataset."""
    notes = []
    for run, same in zip(analyzed, comparable, strict=True):
        if not same:
            notes.append(
                f"{run.run.name} was evaluated on other images or labels than "
                f"{analyzed[0].run.name}, so their differences are not shown."
            )
        others = []
        for kind, metrics in run.run.evaluation.get(run.dataset.name, {}).items():
            if kind in run.analyses:
                stated, actual = metrics.get("AP"), run.analyses[kind].metrics["AP"]
                first, second = np.array([stated, actual], np.float64)  # NaN for None
                if not np.isclose(first, second, rtol=0, atol=1e-6, equal_nan=True):
                    notes.append(
                        f"{run.run.name}: evaluation.json has an AP of {percent(stated)} % for "
                        f"{TITLES[kind].lower()}, but its detections have {percent(actual)} %: the "
                        "evaluation did not follow COCO's rules, or the files belong to two "
                        "evaluations."
                    )
            elif kind != "loss":
                # evaluation.json does not say which numbers are fractions.
                numbers = ((k, value) for k, value in metrics.items() if isinstance(value, float))
                listed = ", ".join(f"{metric} {value:.4g}" for metric, value in numbers)
                others.append(f"{kind} {listed}")
        if others:
            notes.append(f"{run.run.name}: evaluation.json also has {'; '.join(others)}.")
    return notes
