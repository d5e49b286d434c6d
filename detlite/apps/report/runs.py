"""Read and analyze the output of `detlite train` or `test`, or detections of any framework."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pycocotools.coco import COCO
from yacs.config import CfgNode

from detlite.apps.dataset_formats.coco_files import find_images
from detlite.config import ConfigError, load_config
from detlite.data import CocoDataset, build_dataset
from detlite.data.datasets.ground_truth import build_coco_gt
from detlite.engine.run_files import METRICS_FILE
from detlite.evaluation.evaluators import coco_settings, predicted_kinds
from detlite.evaluation.results import Results
from detlite.evaluation.results_file import kinds_of, read_results
from detlite.files.errors import DataError
from detlite.files.json_files import read_json
from detlite.files.reading import read_text

from .analysis.bootstrap import sample_images
from .analysis.detection_analysis import DetectionAnalysis

TITLES = {"bbox": "Boxes", "segm": "Masks", "keypoints": "Keypoints"}
# Each kind of evaluation (COCO and LVIS, VOC, region proposals) reports two of these metrics.
PLOTTED = ("AP", "AP50", "AP50_07", "AR@100", "AR@1000")
_MAX_BYTES = 1 << 30  # of metrics.jsonl
# Matches the line that the trainer logs.
_TRAINING = re.compile(r" I training on .+ \((\d+) images\) for ")


@dataclass(frozen=True, eq=False)
class Run:
    """Output of `detlite train` or `detlite test`, without the detections.

    Attributes:
        path: the output folder, or a file of detections.
        evaluation: evaluation.json as {dataset: {kind: {metric: value}}}; empty if missing.
        lines: lines of metrics.jsonl; empty for `detlite test`.
        train_images: number of training images in log.txt; 0 if unknown.
    """

    name: str
    path: Path
    cfg: CfgNode
    evaluation: dict[str, dict[str, Any]] = field(default_factory=dict)
    lines: list[dict[str, Any]] = field(default_factory=list)
    train_images: int = 0

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of detections: "bbox", and "segm" and "keypoints" if the model has these heads."""
        return predicted_kinds(self.cfg)

    def results(self, dataset: str, coco_gt: COCO, max_dets: int) -> Results:
        """Read the detections on a dataset. Raises DataError, also if they are missing."""
        path = self.path / f"results_{dataset}.json" if self.path.is_dir() else self.path
        if not path.is_file():
            raise DataError(
                f"{self.path} contains no detections on {dataset} ({path.name}): create them "
                f"with `detlite test --config {self.path / 'config.yaml'} --weights CHECKPOINT "
                f"OUTPUT_DIR {self.path}`"
            )
        return read_results(path, coco_gt, self.kinds, max_dets)


@dataclass(frozen=True, eq=False)
class RunAnalysis:
    """Analyses of a run on a dataset, by kind."""

    run: Run
    dataset: CocoDataset
    coco_gt: COCO
    results: Results
    analyses: dict[str, DetectionAnalysis]


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a metrics.jsonl.

    Lines have {"iteration", "loss", "loss_...", ...}, or {"iteration", "evaluation"} with metrics
    by dataset and kind.

    Raises:
        DataError: the file cannot be read, or a line is not JSON or has no iteration.
    """
    try:
        lines = [json.loads(line) for line in read_text(path, _MAX_BYTES).splitlines()]
        wrong = any("iteration" not in line for line in lines)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    if wrong:
        raise DataError(f"{path}: a line has no 'iteration', so `detlite train` did not write it")
    return lines


def read_run(folder: Path, name: str, opts: Sequence[Any] = ()) -> Run:
    """Read a run from its output folder; `opts` override its config.

    Raises:
        ConfigError: the folder contains no run, or its config is invalid.
        DataError: evaluation.json or metrics.jsonl cannot be read.
    """
    config = folder / "config.yaml"
    if not config.is_file():
        raise ConfigError(
            f"{folder} contains no config.yaml: name the OUTPUT_DIR of `detlite train` or `detlite "
            "test`"
        )
    cfg = load_config(config, opts)
    evaluation = {}
    file = folder / "evaluation.json"
    if file.is_file() and cfg.DATASETS.TEST:
        evaluation = read_json(file)
        if not isinstance(evaluation, dict):
            raise DataError(f"{file}: not written by `detlite test`")
        if len(cfg.DATASETS.TEST) == 1:
            evaluation = {cfg.DATASETS.TEST[0]: evaluation}
    metrics, log = folder / METRICS_FILE, folder / "log.txt"
    lines = read_metrics(metrics) if metrics.is_file() else []
    log_text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    trained = [int(number) for number in _TRAINING.findall(log_text)]
    return Run(name, folder, cfg, evaluation, lines, trained[-1] if trained else 0)


def read_detections(
    file: Path, name: str, truth: Path, images: Path | None, opts: Sequence[Any] = ()
) -> Run:
    """Read detections of any framework, in COCO's format, on a ground truth in COCO's format.

    Args:
        file: boxes, and masks or keypoints if the entries have them.
        name: name of the run in the report.
        truth: the annotation file.
        images: the image folder; None: searched for. Without images, errors are not drawn.
        opts: config overrides, such as the limit of detections.
    """
    kinds = kinds_of(file)
    folder = images or truth.parent
    if images is None:
        with suppress(DataError):
            folder = find_images(truth)
    entry = {"name": truth.stem, "annotations": str(truth.absolute()),
             "images": str(folder.absolute())}  # fmt: skip
    config = [
        "DATASETS.CATALOG", [entry], "DATASETS.TEST", (truth.stem,), "DATASETS.CHECK_IMAGES", False,
        "MODEL.MASK_ON", "segm" in kinds, "MODEL.KEYPOINT_ON", "keypoints" in kinds,
    ]  # fmt: skip
    return Run(name, file, load_config(None, [*config, *opts]))


def analyze_run(run: Run, name: str, resamples: int, seed: int) -> RunAnalysis:
    """Analyze the detections of a run on a dataset; see `report_page` for the arguments."""
    dataset = build_dataset(run.cfg, name, train=False)
    coco_gt = build_coco_gt(dataset)
    max_dets, *settings = coco_settings(run.cfg, dataset)
    results = run.results(name, coco_gt, max_dets)
    samples = sample_images(len(dataset), resamples, seed)
    analyses = {
        kind: DetectionAnalysis(coco_gt, results, kind, samples, max_dets, *settings)
        for kind in run.kinds
    }
    return RunAnalysis(run, dataset, coco_gt, results, analyses)


def run_names(paths: Sequence[Path]) -> list[str]:
    """Name runs by the last part of their paths, or by the paths if names are not unique.

    Raises:
        ConfigError: two paths are the same.
    """
    if len(set(map(str, paths))) < len(paths):
        raise ConfigError("the same run is named twice: name each one once")
    names = [path.resolve().name for path in paths]
    return names if len(set(names)) == len(names) else list(map(str, paths))
