"""How long an evaluation takes and how much memory: detlite's and pycocotools' in turn."""

from __future__ import annotations

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
    """One result: from detections in memory to metrics. Times are medians in seconds, on all of
    torch's threads; memory is the peak of the process in 2^20 bytes."""

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
    difference: float  # of the metrics, the largest


@dataclass(frozen=True)
class _Run:
    seconds: float
    cpu_seconds: float
    mib: float
    metrics: list[float]


def benchmark_evaluation(
    images: int = 5000, detections: int = 100, turns: int = 1
) -> Iterator[EvaluationRow]:
    """Measures both on generated data (`evaluation_data.generate`), boxes and then masks.

    Each run has a process of its own, so that its memory is its own.

    Args:
        images: how many.
        detections: of each image.
        turns: how often each is run.
    """
    content, results = generate(images, detections)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "truth.json").write_text(json.dumps(content))
        for field, array in results.arrays().items():
            np.save(folder / f"{field}.npy", array)
        del content, results
        for kind in ("bbox", "segm"):
            ours, theirs = [], []
            for _ in range(turns):
                ours.append(_apart(folder, kind, "detlite"))
                theirs.append(_apart(folder, kind, "pycocotools"))
            yield _row(kind, images, detections, ours, theirs)


def _row(
    kind: str, images: int, detections: int, ours: list[_Run], theirs: list[_Run]
) -> EvaluationRow:
    wall, peer_wall = (statistics.median(run.seconds for run in runs) for runs in (ours, theirs))
    cpu, peer_cpu = (statistics.median(run.cpu_seconds for run in runs) for runs in (ours, theirs))
    return EvaluationRow(
        kind,
        images,
        detections,
        detlite_s=wall,
        pycocotools_s=peer_wall,
        ratio=peer_wall / wall,
        detlite_cpu_s=cpu,
        pycocotools_cpu_s=peer_cpu,
        cpu_ratio=peer_cpu / cpu,
        detlite_mib=max(run.mib for run in ours),
        pycocotools_mib=max(run.mib for run in theirs),
        difference=max(abs(a - b) for a, b in zip(ours[0].metrics, theirs[0].metrics, strict=True)),
    )


def _apart(folder: Path, kind: str, by: str) -> _Run:
    # Not a copy of this process, which would begin with its memory.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_run, folder, kind, by).result()


def _run(folder: Path, kind: str, by: str) -> _Run:
    truth = COCO()
    truth.dataset = json.loads((folder / "truth.json").read_bytes())
    results = Results.from_arrays({file.stem: np.load(file) for file in folder.glob("*.npy")})
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        if by == "detlite":
            start, cpu_start = time.perf_counter(), time.process_time()
            row = evaluate_coco(truth, results, [kind])[kind]
            metrics = [-1 if value is None else value for value in row.values()][:-1]
        else:
            fields = ("image_id", "category_id", "score", IOU_TYPES[kind])
            rows = [{name: row[name] for name in fields} for row in results.to_coco()]
            start, cpu_start = time.perf_counter(), time.process_time()
            metrics = _by_pycocotools(truth, rows, kind)
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return _Run(seconds, cpu_seconds, mib, metrics)


def _by_pycocotools(truth: COCO, rows: list[dict[str, Any]], kind: str) -> list[float]:
    evaluator = COCOeval(truth, truth.loadRes(rows), kind)
    evaluator.evaluate()
    evaluator.accumulate()
    evaluator.summarize()
    return evaluator.stats.tolist()
