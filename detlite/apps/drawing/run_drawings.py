"""Draw the metrics of a training run and detections on test images at its end."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from detlite.apps.report.metric_curves import metric_curves, read_metrics
from detlite.apps.report.report_page import report_page
from detlite.apps.report.runs import read_run
from detlite.config import ConfigError
from detlite.data import CocoDataset, DataError
from detlite.engine.hooks.best_checkpoint import measured_threshold
from detlite.engine.run import DRAWINGS
from detlite.engine.run_files import METRICS_FILE
from detlite.files.atomic_write import atomic_open, atomic_path
from detlite.inference.predictor import Predictor, build_predictor
from detlite.modeling.detection_model import DetectionModel

from .contact_sheet import contact_sheet
from .detections import draw_detections
from .fonts import fonts_for

_MAX_IMAGES = 6
_FEW_OBJECTS = 12  # of an image
_SHEET_WIDTH, _ROW_HEIGHT = 1600, 400  # pixels

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
        predictor = build_predictor(cfg, model, threshold or 0.5)
        draw_sheet(predictor, test_sets[0], folder / "detections.png")
        if cfg.TEST.REPORT:
            write_report(folder)


def write_report(folder: Path) -> None:
    """Write report.html to the folder of a finished run, or log why it cannot be written."""
    try:
        page = report_page([read_run(folder, folder.resolve().name)], link_from=folder)
    except (ConfigError, DataError) as error:
        logger.info("no report: %s", error)
        return
    with atomic_open(folder / "report.html") as file:
        file.write(page)
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
        # Draw at the size on the sheet, at which lines and tags are readable.
        height = min(_ROW_HEIGHT, _SHEET_WIDTH / (2 * ratio))
        pairs.append([
            draw_detections(image, objects, dataset.categories, min_score=0,
                            tags=_tags(objects, dataset.categories),
                            max_side=round(height * max(ratio, 1)))
            for objects in (target, found)
        ])  # fmt: skip
    headings = "labels", f"detections (score >= {predictor.score_thresh:.2f})"
    with atomic_path(path) as temporary:
        contact_sheet(pairs, headings, _SHEET_WIDTH, _ROW_HEIGHT).save(temporary, "PNG")


def _tags(objects: dict[str, Any], categories: Sequence[Any]) -> bool | None:
    """Return `tags` of `draw_detections`: names on small objects too if they are few."""
    return True if len(categories) > 1 and len(objects["labels"]) <= _FEW_OBJECTS else None


def plot_metrics(metrics_file: str | Path, image_file: str | Path) -> None:
    """Plot the losses of a metrics.jsonl on the left, and AP or recall on the right.

    Raises:
        DataError: the file cannot be read, or a line is not JSON or has no iteration.
    """
    # Imported here because it is slow. A figure without pyplot needs no display.
    from matplotlib.figure import Figure

    losses, metrics = metric_curves(read_metrics(Path(metrics_file)))
    figure = Figure(figsize=(12, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, curve in sorted(losses.items(), key=lambda item: item[0] != "loss"):
        color, linewidth = ("black", 2.0) if name == "loss" else (None, 1.2)
        label = name.removeprefix("loss_")
        left.plot(*zip(*curve, strict=True), label=label, color=color, linewidth=linewidth)
    if max(map(len, metrics.values()), default=0) == 1:  # one point is no curve
        bars = right.barh([*metrics], [curve[0][1] for curve in metrics.values()])
        right.bar_label(bars, fmt="%.1f", padding=3)
        right.invert_yaxis()
        right.set(xlim=(0, 105))
    else:
        for number, (name, curve) in enumerate(metrics.items()):
            style = {"color": f"C{number // 2}", "linestyle": "--" if number % 2 else "-"}
            right.plot(*zip(*curve, strict=True), label=name, marker="o", markersize=4, **style)
        right.set(xlabel="iteration", ylim=(0, 100))
    left.set(title="Training loss", xlabel="iteration", ylim=(0, None))
    right.set(title="Average precision, or recall (%)")
    for panel, curves in ((left, losses), (right, metrics)):
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
        if not curves:
            panel.text(0.5, 0.5, "nothing yet", ha="center", transform=panel.transAxes)
        elif panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize=9)
    with atomic_path(Path(image_file)) as temporary, fonts_for(figure):
        figure.savefig(temporary, format="png", dpi=110)
