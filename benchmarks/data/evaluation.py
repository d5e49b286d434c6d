"""Time and memory of COCO evaluation, compared with pycocotools and, if installed, hotcoco."""

import contextlib
import importlib.util
import io
import json
import multiprocessing
import pickle
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from detlite.evaluation import Results, evaluate_coco
from detlite.evaluation.results import IOU_TYPES, write_results

from .generated_results import generate


@dataclass(frozen=True)
class EvaluationRow:
    """Result of an evaluation, from detections in memory to metrics.

    Times are medians in seconds, with all of torch's threads. Memory is the peak of the process in
    2^20 bytes. `difference` is the largest difference of a metric. hotcoco is a library in Rust
    (https://pypi.org/project/hotcoco); its times are None if it is not installed.
    """

    kind: str
    images: int
    detections: int
    detlite_s: float
    pycocotools_s: float
    hotcoco_s: float | None
    ratio: float
    detlite_cpu_s: float
    pycocotools_cpu_s: float
    hotcoco_cpu_s: float | None
    cpu_ratio: float
    detlite_mib: float
    pycocotools_mib: float
    hotcoco_mib: float | None
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
    """Measure the libraries with generated data, first boxes and then masks.

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
        (folder / "results.pkl").write_bytes(pickle.dumps(results))
        libraries = ["detlite", "pycocotools"]
        if importlib.util.find_spec("hotcoco"):
            libraries.append("hotcoco")
            # Results with boxes are measured by the areas of the boxes.
            write_results(replace(results, masks=None), folder / "results_bbox.json")
            write_results(replace(results, boxes=None), folder / "results_segm.json")
        del content, results
        for kind in ("bbox", "segm"):
            runs: dict[str, list[_Run]] = {name: [] for name in libraries}
            for _ in range(turns):
                for library, own in runs.items():
                    own.append(_run_in_process(folder, kind, library))
            yield _row(kind, images, detections, runs)


def _row(kind: str, images: int, detections: int, runs: dict[str, list[_Run]]) -> EvaluationRow:
    wall = {name: statistics.median(run.seconds for run in own) for name, own in runs.items()}
    cpu = {name: statistics.median(run.cpu_seconds for run in own) for name, own in runs.items()}
    mib = {name: max(run.mib for run in own) for name, own in runs.items()}
    metrics = [own[0].metrics for own in runs.values()]
    return EvaluationRow(
        kind,
        images,
        detections,
        detlite_s=wall["detlite"],
        pycocotools_s=wall["pycocotools"],
        hotcoco_s=wall.get("hotcoco"),
        ratio=wall["pycocotools"] / wall["detlite"],
        detlite_cpu_s=cpu["detlite"],
        pycocotools_cpu_s=cpu["pycocotools"],
        hotcoco_cpu_s=cpu.get("hotcoco"),
        cpu_ratio=cpu["pycocotools"] / cpu["detlite"],
        detlite_mib=mib["detlite"],
        pycocotools_mib=mib["pycocotools"],
        hotcoco_mib=mib.get("hotcoco"),
        difference=max(max(values) - min(values) for values in zip(*metrics, strict=True)),
    )


def _run_in_process(folder: Path, kind: str, library: str) -> _Run:
    # A forked process would start with the memory of this one.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_run, folder, kind, library).result()


def _run(folder: Path, kind: str, library: str) -> _Run:
    evaluate = {"detlite": _detlite, "pycocotools": _pycocotools, "hotcoco": _hotcoco}[library]
    with contextlib.redirect_stdout(io.StringIO()):
        run = evaluate(folder, kind)
        start, cpu_start = time.perf_counter(), time.process_time()
        metrics = run()
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return _Run(seconds, cpu_seconds, mib, metrics)


def _inputs(folder: Path) -> tuple[COCO, Results]:
    ground_truth = COCO()
    ground_truth.dataset = json.loads((folder / "ground_truth.json").read_bytes())
    ground_truth.createIndex()
    return ground_truth, pickle.loads((folder / "results.pkl").read_bytes())


def _detlite(folder: Path, kind: str) -> Callable[[], list[float]]:
    ground_truth, results = _inputs(folder)

    def run() -> list[float]:
        row = evaluate_coco(ground_truth, results, [kind])[kind]
        values = (value for value in row.values() if not isinstance(value, dict))
        return [-1 if value is None else value for value in values]

    return run


def _pycocotools(folder: Path, kind: str) -> Callable[[], list[float]]:
    ground_truth, results = _inputs(folder)
    fields = ("image_id", "category_id", "score", IOU_TYPES[kind])
    rows = [{name: row[name] for name in fields} for row in results.to_coco()]
    return lambda: _run_evaluator(COCOeval(ground_truth, ground_truth.loadRes(rows), kind))


def _hotcoco(folder: Path, kind: str) -> Callable[[], list[float]]:
    import hotcoco

    ground_truth = hotcoco.COCO(str(folder / "ground_truth.json"))
    results = ground_truth.load_res(str(folder / f"results_{kind}.json"))
    return lambda: _run_evaluator(hotcoco.COCOeval(ground_truth, results, kind))


def _run_evaluator(evaluator: Any) -> list[float]:
    evaluator.evaluate()
    evaluator.accumulate()
    evaluator.summarize()
    return evaluator.stats.tolist()
