"""The first lines of a report: what a run achieved, on what basis, and what to do next."""

import math
from collections.abc import Sequence
from statistics import mean
from typing import Any

from detlite.apps.autoconfig.training_steps import MIN_FRACTION, steps_for_images
from detlite.apps.drawing.html_page import percent
from detlite.evaluation.coco import ScoreThreshold
from detlite.modeling.build import torch_device

from .analysis.bootstrap import compare
from .analysis.detection_analysis import DetectionAnalysis
from .runs import TITLES, Run, RunAnalysis

_STILL_FALLING = 0.1  # decrease of the loss from the fourth to the last fifth of a run


def verdict(analyzed: RunAnalysis) -> dict[str, Any]:
    """Describe the result of a run on a dataset in sentences.

    Returns:
        The name of the `run`, the `headline`, `meaning` and `basis` of its result, the number of
        `unlabeled` images, and the `next_step`, which is "" if the error types decide about it.
    """
    run = analyzed.run
    analysis = analyzed.analyses[_kind([analyzed])]
    values = {
        TITLES[kind].lower(): result.metrics["AP"] for kind, result in analyzed.analyses.items()
    }
    basis = f"Measured on {_count(len(analyzed.dataset), 'image')} with "
    basis += _count(int(analysis.objects.sum()), "object")
    if done := _iterations(run):
        basis += f", after {_count(done, 'training step')} of "
        basis += _count(run.cfg.SOLVER.IMS_PER_BATCH, "image")
        if run.train_images:
            basis += f" ({_count(run.train_images, 'training image')})"
    return {
        "run": run.name,
        "headline": ", ".join(f"AP {percent(ap)} % for {title}" for title, ap in values.items()),
        "meaning": _meaning(analysis),
        "basis": f"{basis}.{_without_results(analyzed)}",
        "unlabeled": analysis.unlabeled,
        "next_step": _next_step(run, analysis),
    }


def _kind(analyzed: Sequence[RunAnalysis]) -> str:
    """Return what decides about runs: masks, or boxes if a run has no masks."""
    return "segm" if all("segm" in run.analyses for run in analyzed) else "bbox"


def rank(analyzed: Sequence[RunAnalysis]) -> list[RunAnalysis]:
    """Order runs by decreasing AP of masks, or of boxes if a run has no masks."""
    kind = _kind(analyzed)
    return sorted(analyzed, key=lambda run: -(run.analyses[kind].metrics["AP"] or 0.0))


def comparison(ranked: Sequence[RunAnalysis]) -> list[str]:
    """Say for each other run on the same images how much better the first one is."""
    kind, best = _kind(ranked), ranked[0]
    name, own = best.run.name, best.analyses[kind]
    sentences = []
    for one in ranked[1:]:
        other = one.analyses[kind]
        sampled = [result.bootstrap.metrics()["AP"] for result in (other, own)]
        change = compare(other.metrics["AP"], own.metrics["AP"], *sampled)
        if change is None:
            continue
        low, high = (percent(bound, sign="+") for bound in change.interval)
        amount = f"{percent(change.value)} points of AP for {TITLES[kind].lower()}"
        text = f"{name} is better than {one.run.name} by {amount}"
        if change.is_noise:
            text = f"The difference between {name} and {one.run.name} is noise: {amount}"
        sentences.append(f"{text} ({low} to {high} with other test images).")
    return sentences


def _without_results(analyzed: RunAnalysis) -> str:
    """Say for how many images with objects a file has no results."""
    truth, found = analyzed.coco_gt, {*analyzed.results.image_ids.tolist()}
    objects = [len(truth.imgToAnns[key]) for key in truth.imgs if key not in found]
    missing = sum(number > 0 for number in objects)
    if not missing or not analyzed.run.path.is_file():  # a run has detected in all images
        return ""
    effect = f"so their {_count(sum(objects), 'object')} count as missed"
    return f" There are no results for {missing} of {_count(len(truth.imgs), 'image')}, {effect}."


def _meaning(analysis: DetectionAnalysis) -> str:
    threshold, objects = analysis.threshold, int(analysis.objects.sum())
    if not objects:
        return "The dataset has no objects, so nothing can be measured."
    if threshold is None:
        return f"The model detects none of the {_count(objects, 'object')}."
    interval = _precision_interval(threshold, objects)
    return (
        f"With scores of at least {threshold.score:.2f}, the model detects "
        f"{_rounded(threshold.recall)} % of the objects, and {_rounded(threshold.precision)} % "
        f"of its detections are right ({interval} with other images)."
    )


def _precision_interval(threshold: ScoreThreshold, objects: int) -> str:
    """Return the 95 % interval of the precision in percent (Wilson, JASA 1927)."""
    p, count = threshold.precision, threshold.recall * objects / threshold.precision
    square = 1.96**2 / count
    center, half = p + square / 2, math.sqrt(square * (p * (1 - p) + square / 4))
    low, high = ((center + side * half) / (1 + square) for side in (-1, 1))
    return f"{_rounded(low)} to {_rounded(min(high, 1))} %"


def _next_step(run: Run, analysis: DetectionAnalysis) -> str:
    """Return what to do before any error is worth a look."""
    solver, done = run.cfg.SOLVER, _iterations(run)
    fixed = not (solver.MAX_EPOCHS or solver.MAX_MINUTES or solver.PATIENCE)
    if done and fixed and done < solver.MAX_ITER:
        return (
            f"The run ended after {done} of {solver.MAX_ITER} steps. Continue it: detlite train "
            f"--output {run.path} --resume"
        )
    recommended = _recommended(run)
    is_short = done < MIN_FRACTION * recommended
    if solver.MAX_MINUTES:
        factor = recommended / done if done and is_short else 2
        longer = f"Train longer, with --minutes {math.ceil(factor * solver.MAX_MINUTES)}."
    else:
        key = "MAX_EPOCHS" if solver.MAX_EPOCHS else "MAX_ITER"
        longer = f"Train longer: raise SOLVER.{key} ({round(solver[key], 2)})."
    if is_short:
        return f"{longer} The run had {done} of {recommended} recommended steps."
    losses = [line["loss"] for line in run.lines if "loss" in line]
    if fifth := len(losses) // 5:
        before, last = mean(losses[-2 * fifth : -fifth]), mean(losses[-fifth:])
        if last < before * (1 - _STILL_FALLING):
            return f"{longer} The loss fell by {percent(1 - last / before, 0)} % in the last fifth."
    if analysis.threshold is None and analysis.objects.any():
        return f"{longer} If that does not help, check the labels with detlite browse."
    return ""


def _recommended(run: Run) -> int:
    """Return the number of steps that a run of a number of minutes should have; 0 if unknown."""
    cfg = run.cfg
    if not cfg.SOLVER.MAX_MINUTES or not run.train_images or cfg.INPUT.TILE:
        return 0
    device = "CPU" if torch_device(cfg.MODEL.DEVICE).type == "cpu" else "GPU"
    pretrained, size = bool(cfg.MODEL.WEIGHT), cfg.SOLVER.IMS_PER_BATCH
    return steps_for_images(run.train_images, size, pretrained, device)[0]


def _iterations(run: Run) -> int:
    return run.lines[-1]["iteration"] if run.lines else 0


def _rounded(value: float) -> str:
    """Format a fraction in percent so that only none is 0 and only all is 100."""
    return percent(value, 0 if value in (0, 1) or 0.01 <= value <= 0.99 else 1)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
