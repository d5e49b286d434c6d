"""Draw the metrics of a training run and detections on test images at its end."""

import logging
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont
from yacs.config import CfgNode

from detlite.apps.drawing.detections import draw_detections
from detlite.apps.drawing.html_page import side_by_side
from detlite.config import ConfigError
from detlite.data import CocoDataset, DataError
from detlite.engine.hooks.best_checkpoint import measured_threshold
from detlite.engine.run import DRAWINGS
from detlite.engine.run_files import METRICS_FILE
from detlite.files.atomic_write import atomic_path, write_file
from detlite.inference.options import build_options
from detlite.inference.predictor import Predictor
from detlite.modeling.detection_model import DetectionModel

from . import charts
from .report_page import report_page
from .runs import PLOTTED, read_metrics, read_run

_MAX_IMAGES = 6
_FEW_OBJECTS = 12  # of an image
_MAX_WIDTH, _MAX_HEIGHT = 790, 400  # of an image, in pixels
_GAP, _TOP = 8, 36  # pixels between images and around them, and above them

Curves = dict[str, tuple[Sequence[float], ...]]  # x and y by name

logger = logging.getLogger(__name__)


@DRAWINGS.register("run")
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
    step = max(len(indices) // _MAX_IMAGES, 1)
    pairs = []
    for index in indices[::step][:_MAX_IMAGES]:
        image, target = dataset[index]
        found = predictor(image, target.get("proposals"))
        if "masks" in found:
            number, selection = int(dataset.numbers[index]), dataset.options.selection
            rows = dataset.table.stored(number, selection.objects)
            target["masks"] = [row["segmentation"] for row in rows]
        ratio = image.shape[2] / image.shape[1]
        height = min(_MAX_HEIGHT, _MAX_WIDTH / ratio)
        pair = []
        for objects in (target, found):
            # Names on small objects, too, if they are few.
            few = len(dataset.categories) > 1 and len(objects["labels"]) <= _FEW_OBJECTS
            # Drawn at the size on the sheet, lines and tags are readable.
            side = round(height * max(ratio, 1))
            pair.append(
                draw_detections(image, objects, dataset.categories, 0, max_side=side,
                                tags=few or None)
            )  # fmt: skip
        pairs.append(side_by_side(pair, _GAP))
    title = f"labels (left), and detections with a score >= {predictor.score_thresh:.2f}"
    with atomic_path(path) as temporary:
        draw_column(pairs, title).save(temporary, "PNG")


def draw_column(pairs: Sequence[Image.Image], title: str) -> Image.Image:
    """Arrange pairs of images in a column on white, below a title."""
    font = ImageFont.load_default(20)
    width = max(font.getlength(title), *(pair.width for pair in pairs)) + 2 * _GAP
    height, y = _TOP + sum(pair.height + _GAP for pair in pairs), _TOP
    sheet = Image.new("RGB", (math.ceil(width), height), "white")
    ImageDraw.Draw(sheet).text((_GAP, _TOP - _GAP), title, "black", font, anchor="ls")
    for pair in pairs:
        sheet.paste(pair, (_GAP, y))
        y += pair.height + _GAP
    return sheet


def metric_curves(lines: list[dict[str, Any]]) -> tuple[Curves, Curves]:
    """Return the losses, and the metrics in percent, as iterations and values by name.

    The first loss is the sum, followed by its components.
    """
    losses, metrics = defaultdict[str, Any](list), defaultdict[str, Any](list)
    several = len({name for line in lines for name in line.get("evaluation", {})}) > 1
    for line in lines:
        iteration = line["iteration"]
        for name, value in line.items():
            if name.startswith("loss"):
                losses[name.removeprefix("loss_")].append((iteration, value))
        for dataset, kinds in line.get("evaluation", {}).items():
            prefix = f"{dataset} " if several else ""
            for kind, values in kinds.items():
                if kind == "loss" and values["total"] is not None:
                    losses[f"{prefix or 'validation '}loss"].append((iteration, values["total"]))
                for metric in PLOTTED:
                    if values.get(metric) is not None:
                        metrics[f"{prefix}{kind} {metric}"].append(
                            (iteration, 100 * values[metric])
                        )
    ordered = dict(sorted(losses.items(), key=lambda item: item[0] != "loss"))
    return _transposed(ordered), _transposed(metrics)


def _transposed(curves: dict[str, Any]) -> Curves:
    return {name: tuple(zip(*points, strict=True)) for name, points in curves.items()}


def plot_metrics(metrics_file: Path, image_file: Path) -> None:
    """Plot the losses of a metrics.jsonl on the left, and AP or recall on the right.

    Raises:
        DataError: the file cannot be read, or a line is not JSON or has no iteration.
    """
    losses, metrics = metric_curves(read_metrics(metrics_file))
    figure = Figure(figsize=(12, 4.5), layout="constrained")  # without pyplot, it needs no display
    left, right = figure.subplots(1, 2)
    charts.plot(left, "Training loss", losses, "iteration")
    named = {f"{name}: {values[-1]:.1f}": (x, values) for name, (x, values) in metrics.items()}
    title = "Average precision, or recall (%)"
    charts.plot(right, title, named, "iteration", markers=True, ylim=(0, 100))
    for axes in (left, right):
        if axes.lines:
            axes.legend(fontsize=9)
    with atomic_path(image_file) as temporary, charts.fonts_for(figure):
        figure.savefig(temporary, format="png", dpi=110)
