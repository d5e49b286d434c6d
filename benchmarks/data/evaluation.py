"""Time and memory of COCO evaluation, compared with pycocotools."""

import contextlib
import io
import json
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from detlite.evaluation import Results, evaluate_coco
from detlite.evaluation.results import IOU_TYPES

from .generated_results import generate


@dataclass(frozen=True)
class EvaluationRow:
    """Result of an evaluation, from detections in memory to metrics.

    Times are medians in seconds, with all of torch's threads. Memory is the peak of the process in
    2^20 bytes. `difference` is the largest difference of a metric.
    """

    kind: str
    images: int
    detections: int
    detlite_s: float
    pycocotools_s: float
    ratio: float
    detlite_cpu_s: float
    pycocotools_cpu_s: float
    cpu_ratio: float
    detlite_mib: float
    pycocotools_mib: float
    difference: float


@dataclass(frozen=True)
class _Run:
    seconds: float
    cpu_seconds: float
    mib: float
    metrics: list[float]


def benchmark_evaluation(
    images: int = 5000, detections: int = 100, turns: int = 1
) -> Iterator[EvaluationRow]:
    """Measure both with generated data, first boxes and then masks.

    Each run has its own process, so that its peak of memory can be measured.

    Args:
        images: number of images.
        detections: detections per image.
        turns: runs of each library.
    """
    content, results = generate(images, detections)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "ground_truth.json").write_text(json.dumps(content))
        for field, array in results.arrays().items():
            np.save(folder / f"{field}.npy", array)
        del content, results
        for kind in ("bbox", "segm"):
            runs: dict[str, list[_Run]] = {"detlite": [], "pycocotools": []}
            for _ in range(turns):
                for library, own in runs.items():
                    own.append(_run_in_process(folder, kind, library))
            yield _row(kind, images, detections, *runs.values())


def _row(
    kind: str, images: int, detections: int, detlite: list[_Run], pycocotools: list[_Run]
) -> EvaluationRow:
    libraries = (detlite, pycocotools)
    wall, reference_wall = (statistics.median(run.seconds for run in runs) for runs in libraries)
    cpu, reference_cpu = (statistics.median(run.cpu_seconds for run in runs) for runs in libraries)
    metrics = zip(detlite[0].metrics, pycocotools[0].metrics, strict=True)
    return EvaluationRow(
        kind,
        images,
        detections,
        detlite_s=wall,
        pycocotools_s=reference_wall,
        ratio=reference_wall / wall,
        detlite_cpu_s=cpu,
        pycocotools_cpu_s=reference_cpu,
        cpu_ratio=reference_cpu / cpu,
        detlite_mib=max(run.mib for run in detlite),
        pycocotools_mib=max(run.mib for run in pycocotools),
        difference=max(abs(a - b) for a, b in metrics),
    )


def _run_in_process(folder: Path, kind: str, library: str) -> _Run:
    # A forked process would start with the memory of this one.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_run, folder, kind, library).result()


def _run(folder: Path, kind: str, library: str) -> _Run:
    ground_truth = COCO()
    ground_truth.dataset = json.loads((folder / "ground_truth.json").read_bytes())
    results = Results.from_arrays({file.stem: np.load(file) for file in folder.glob("*.npy")})
    with contextlib.redirect_stdout(io.StringIO()):
        ground_truth.createIndex()
        if library == "detlite":
            start, cpu_start = time.perf_counter(), time.process_time()
            row = evaluate_coco(ground_truth, results, [kind])[kind]
            metrics = [-1 if value is None else value for value in row.values()][:-1]
        else:
            fields = ("image_id", "category_id", "score", IOU_TYPES[kind])
            rows = [{name: row[name] for name in fields} for row in results.to_coco()]
            start, cpu_start = time.perf_counter(), time.process_time()
            metrics = _evaluate_by_pycocotools(ground_truth, rows, kind)
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return _Run(seconds, cpu_seconds, mib, metrics)


def _evaluate_by_pycocotools(
    ground_truth: COCO, rows: list[dict[str, Any]], kind: str
) -> list[float]:
    evaluator = COCOeval(ground_truth, ground_truth.loadRes(rows), kind)
    evaluator.evaluate()
    evaluator.accumulate()
    evaluator.summarize()
    return evaluator.stats.tolist()
