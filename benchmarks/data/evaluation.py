"""Time and memory of COCO evaluation, compared with pycocotools and, if installed, hotcoco."""

import contextlib
import importlib.util
import io
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from detlite.evaluation import evaluate_coco
from detlite.evaluation.reading.files import read_results, read_truth
from detlite.evaluation.results import write_results

from ..roofline import process_memory
from .generated_results import generate

_STAGES = ("truth", "results", "metrics")


@dataclass(frozen=True)
class EvaluationRow:
    """Time and memory of an evaluation by one library, from two COCO files to metrics.

    Times are medians in seconds, with all of torch's threads: reading the ground truth, reading the
    results, computing the metrics, and their sum. Memory is the peak of the process in 10^6 bytes.
    `difference` is the largest difference of a metric from detlite's value. hotcoco is a library in
    Rust (https://pypi.org/project/hotcoco).
    """

    kind: str
    library: str
    images: int
    detections: int
    truth_s: float
    results_s: float
    metrics_s: float
    whole_s: float
    whole_cpu_s: float
    ratio: float  # whole_s over detlite's whole_s
    peak_mb: float
    difference: float


@dataclass(frozen=True)
class _Run:
    seconds: dict[str, float]
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
    content, results = generate(images, detections)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "truth.json").write_text(json.dumps(content))
        # Results with boxes are measured by the areas of the boxes.
        write_results(replace(results, masks=None), folder / "bbox.json")
        write_results(replace(results, boxes=None), folder / "segm.json")
        del content, results
        libraries = [name for name in libraries if importlib.util.find_spec(name)]
        for kind in ("bbox", "segm"):
            runs: dict[str, list[_Run]] = {name: [] for name in libraries}
            for _ in range(turns):
                for library in libraries:
                    runs[library].append(_run_in_process(folder, kind, library))
            for library in libraries:
                yield _row(kind, library, (images, detections), runs[library], runs["detlite"])


def _row(
    kind: str, library: str, counts: tuple[int, int], runs: list[_Run], reference: list[_Run]
) -> EvaluationRow:
    stages = [statistics.median(run.seconds[name] for run in runs) for name in _STAGES]
    whole, reference_whole = (
        statistics.median(sum(run.seconds.values()) for run in group) for group in (runs, reference)
    )
    metrics = zip(runs[0].metrics, reference[0].metrics, strict=True)
    return EvaluationRow(
        kind,
        library,
        images=counts[0],
        detections=counts[1],
        truth_s=stages[0],
        results_s=stages[1],
        metrics_s=stages[2],
        whole_s=whole,
        whole_cpu_s=statistics.median(run.cpu_seconds for run in runs),
        ratio=whole / reference_whole,
        peak_mb=max(run.peak_mb for run in runs),
        difference=max(abs(a - b) for a, b in metrics),
    )


def _run_in_process(folder: Path, kind: str, library: str) -> _Run:
    # A forked process would start with the memory of this one.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_run, folder, kind, library).result()


def _run(folder: Path, kind: str, library: str) -> _Run:
    steps = {"detlite": _detlite, "pycocotools": _pycocotools, "hotcoco": _hotcoco}[library]
    seconds, value, cpu_start = {}, None, time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        for name, step in zip(_STAGES, steps(folder, kind), strict=True):
            start = time.perf_counter()
            value = step()
            seconds[name] = time.perf_counter() - start
    peak_mb = process_memory("VmHWM")  # ru_maxrss would count the memory of the parent
    assert value is not None
    return _Run(seconds, time.process_time() - cpu_start, peak_mb, value)


def _detlite(folder: Path, kind: str) -> Iterator[Callable[[], Any]]:
    """Yield a function for each of `_STAGES`; the last one returns the metrics."""
    read: list[Any] = []
    yield lambda: read.append(read_truth(folder / "truth.json"))
    yield lambda: read.append(read_results(folder / f"{kind}.json", read[0], [kind]))

    def metrics() -> list[float]:
        truth, results = read
        row = evaluate_coco(truth, results, [kind])[kind]
        values = (value for value in row.values() if not isinstance(value, dict))
        return [-1 if value is None else value for value in values]

    yield metrics


def _pycocotools(folder: Path, kind: str) -> Iterator[Callable[[], Any]]:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    read: list[Any] = []
    yield lambda: read.append(COCO(str(folder / "truth.json")))
    yield lambda: read.append(read[0].loadRes(str(folder / f"{kind}.json")))
    yield lambda: _metrics(COCOeval(*read, kind))


def _hotcoco(folder: Path, kind: str) -> Iterator[Callable[[], Any]]:
    import hotcoco

    read: list[Any] = []
    yield lambda: read.append(hotcoco.COCO(str(folder / "truth.json")))
    yield lambda: read.append(read[0].load_res(str(folder / f"{kind}.json")))
    yield lambda: _metrics(hotcoco.COCOeval(*read, kind))


def _metrics(evaluator: Any) -> list[float]:
    evaluator.evaluate()
    evaluator.accumulate()
    evaluator.summarize()
    metrics: list[float] = evaluator.stats.tolist()
    return metrics
