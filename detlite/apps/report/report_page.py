"""Build the HTML page of a report about one or several runs."""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from detlite.apps.drawing.html_page import percent, render
from detlite.apps.optional_packages import import_optional
from detlite.config import ConfigError

from .error_gallery import ErrorGallery
from .metric_sections import TemplateData, metric_section
from .run_table import run_table
from .runs import TITLES, Run, RunAnalysis, analyze_run
from .verdict import comparison, rank, verdict

_MAX_EXAMPLES = 6
_COMPARED = ("images", "annotations", "categories")  # of two datasets


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
        ConfigError: `build_dataset` raises it, jinja2 or hotcoco is not installed, or a run has no
            test set or detects no objects.
    """
    import_optional("hotcoco", "hotcoco")  # pycocotools has no types of errors
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
            sections.append(metric_section(prefix, kind, analyses))
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
