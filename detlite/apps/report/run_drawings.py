"""Draw the metrics of a training run and detections on test images at its end."""

import logging
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from yacs.config import CfgNode

from detlite.apps.drawing.detections import draw_detections
from detlite.apps.drawing.html_page import join_images
from detlite.config import ConfigError
from detlite.data import CocoDataset, DataError
from detlite.engine.hooks.best_checkpoint import measured_threshold
from detlite.engine.hooks.metrics import flatten_metrics
from detlite.engine.run_files import METRICS_FILE
from detlite.files.atomic_write import atomic_path, write_file
from detlite.inference.options import build_options
from detlite.inference.predictor import Predictor
from detlite.modeling.detection_model import DetectionModel

from . import charts
from .report_page import report_page
from .runs import PLOTTED, read_metrics, read_run

_MAX_IMAGES = 6
_SIDE = 480  # longer side of an image, in pixels

logger = logging.getLogger(__name__)


def draw_run(
    cfg: CfgNode,
    model: DetectionModel,
    test_sets: Sequence[CocoDataset],
    metrics: dict[str, dict[str, Any]],
) -> None:
    """Write curves.png and, if there are test sets, detections.png and report.html.

    `metrics` are those of the last evaluation, by dataset.
    """
    folder = Path(cfg.OUTPUT_DIR)
    plot_metrics(folder / METRICS_FILE, folder / "curves.png")
    if test_sets:
        threshold = measured_threshold(metrics.get(test_sets[0].name, {}))
        options = build_options(cfg)
        predictor = Predictor(model, score_thresh=threshold or 0.5, options=options)
        draw_sheet(predictor, test_sets[0], folder / "detections.png")
        if cfg.TEST.REPORT:
            write_report(folder)


def write_report(folder: Path) -> None:
    """Write report.html to the folder of a finished run, or log why it cannot be written."""
    try:
        page = report_page([read_run(folder, folder.resolve().name)])
    except (ConfigError, DataError) as error:
        logger.info("no report: %s", error)
        return
    write_file(folder / "report.html", page.encode())
    logger.info("report: %s", folder / "report.html")


def draw_sheet(predictor: Predictor, dataset: CocoDataset, path: Path) -> None:
    """Draw images spread over a dataset on one sheet, each with labels and then detections."""
    labeled = [index for index in range(len(dataset)) if len(dataset.labels(index))]
    indices = labeled or range(len(dataset))
    rows = []
    for index in indices[:: max(len(indices) // _MAX_IMAGES, 1)][:_MAX_IMAGES]:
        image, target = dataset[index]
        found = predictor(image, target.get("proposals"))
        if "masks" in found:
            number, selection = int(dataset.numbers[index]), dataset.options.selection
            stored = dataset.table.stored(number, selection.objects)
            target["masks"] = [row["segmentation"] for row in stored]
        rows.append([
            draw_detections(image, objects, dataset.categories, 0, max_side=_SIDE)
            for objects in (target, found)
        ])  # fmt: skip
    with atomic_path(path) as temporary:
        join_images(rows).save(temporary, "PNG")


def plot_metrics(metrics_file: Path, image_file: Path) -> None:
    """Plot the losses of a metrics.jsonl, and AP or recall next to them if measured repeatedly.

    Raises:
        DataError: the file cannot be read, or a line is not JSON or has no iteration.
    """
    losses, metrics = defaultdict[str, Any](list), defaultdict[str, Any](list)
    for line in read_metrics(metrics_file):
        iteration = line["iteration"]
        for name, value in line.items():
            if name.startswith("loss"):
                losses[name].append((iteration, value))
        for name, measured in flatten_metrics(line.get("evaluation", {})).items():
            if measured is not None and name.endswith("/loss/total"):
                losses[name].append((iteration, measured))
            elif measured is not None and name.rpartition("/")[2] in PLOTTED:
                metrics[name].append((iteration, 100 * measured))
    panels: dict[str, tuple[dict[str, Any], Any]] = {"Training loss": (losses, {})}
    if shown := {f"{n}: {row[-1][1]:.1f}": row for n, row in metrics.items() if len(row) > 1}:
        panels["Average precision, or recall (%)"] = shown, {"marker": "o", "ylim": (0, 100)}
    # Without pyplot, the figure needs no display.
    figure = Figure(figsize=(6 * len(panels), 4.5), layout="constrained")
    for number, (title, (rows, style)) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), number)
        curves = {name: np.transpose(points) for name, points in rows.items()}
        charts.plot(axes, title, curves, xlabel="iteration", **style)
        if rows:
            axes.legend(fontsize=9)
    with atomic_path(image_file) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
