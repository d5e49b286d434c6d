"""Time and memory of COCO evaluation, compared with pycocotools and hotcoco alone."""

import contextlib
import importlib.util
import io
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detlite.evaluation import evaluate_coco

from ..roofline import process_memory
from .generated_results import generate


@dataclass(frozen=True)
class EvaluationRow:
    """Time and memory of an evaluation by one library, from two COCO files to metrics.

    Attributes:
        kind: "bbox" or "segm".
        library: "detlite", "pycocotools" or "hotcoco".
        images, detections: images of the dataset, and detections per image.
        seconds, cpu_seconds: medians, with all threads.
        ratio: `seconds` over detlite's.
        peak_mb: peak memory of the process in 10^6 bytes, including the imported libraries.
        difference: the largest difference of a metric from detlite's value.
    """

    kind: str
    library: str
    images: int
    detections: int
    seconds: float
    cpu_seconds: float
    ratio: float
    peak_mb: float
    difference: float


@dataclass(frozen=True)
class _Run:
    seconds: float
    cpu_seconds: float
    peak_mb: float
    metrics: list[float]


def benchmark_evaluation(
    images: int = 5000,
    detections: int = 100,
    turns: int = 1,
    libraries: Sequence[str] = ("detlite", "pycocotools", "hotcoco"),
) -> Iterator[EvaluationRow]:
    """Measure the libraries with generated files, first boxes and then masks.

    The libraries alternate. Each run has its own process, for measuring its peak memory.

    Args:
        images: number of images.
        detections: detections per image.
        turns: runs of each library.
        libraries: detlite and others; libraries that are not installed are skipped.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        content, results = generate(images, detections)
        (folder / "truth.json").write_text(json.dumps(content))
        # A file has boxes or masks: with both, detlite measures masks by their own areas.
        for kind, field in (("bbox", "segmentation"), ("segm", "bbox")):
            rows = [{key: value for key, value in row.items() if key != field} for row in results]
            (folder / f"{kind}.json").write_text(json.dumps(rows))
        del content, results, rows
        libraries = [name for name in libraries if importlib.util.find_spec(name)]
        for kind in ("bbox", "segm"):
            runs: dict[str, list[_Run]] = {name: [] for name in libraries}
            for _ in range(turns):
                for library in libraries:
                    runs[library].append(_run_in_process(folder, kind, library))
            first = runs["detlite"]
            reference = statistics.median(run.seconds for run in first)
            for library, own in runs.items():
                seconds = statistics.median(run.seconds for run in own)
                metrics = zip(own[0].metrics, first[0].metrics, strict=True)
                yield EvaluationRow(
                    kind,
                    library,
                    images,
                    detections,
                    seconds,
                    statistics.median(run.cpu_seconds for run in own),
                    seconds / reference,
                    max(run.peak_mb for run in own),
                    max(abs(a - b) for a, b in metrics),
                )


def _run_in_process(folder: Path, kind: str, library: str) -> _Run:
    # A forked process would start with the memory of this one.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_run, folder, kind, library).result()


def _run(folder: Path, kind: str, library: str) -> _Run:
    files = str(folder / "truth.json"), str(folder / f"{kind}.json")
    start, cpu_start = time.perf_counter(), time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        metrics = _detlite(*files, kind) if library == "detlite" else _peer(library, *files, kind)
    return _Run(
        time.perf_counter() - start,
        time.process_time() - cpu_start,
        process_memory("VmHWM"),  # ru_maxrss would count the memory of the parent
        metrics,
    )


def _detlite(truth: str, results: str, kind: str) -> list[float]:
    row = evaluate_coco(truth, results, [kind])[kind]
    values = (value for value in row.values() if not isinstance(value, dict))
    return [-1 if value is None else value for value in values]


def _peer(library: str, truth: str, results: str, kind: str) -> list[float]:
    """Evaluate with a library that has the classes of pycocotools."""
    if library == "hotcoco":
        import hotcoco

        ground_truth: Any = hotcoco.COCO(truth)
        evaluator: Any = hotcoco.COCOeval(ground_truth, ground_truth.load_res(results), kind)
    else:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

        ground_truth = COCO(truth)
        evaluator = COCOeval(ground_truth, ground_truth.loadRes(results), kind)
    evaluator.evaluate()
    evaluator.accumulate()
    evaluator.summarize()
    return [float(value) for value in evaluator.stats]
