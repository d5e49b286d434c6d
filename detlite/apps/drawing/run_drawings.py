"""Draw the metrics of a training run and detections on test images at its end."""

import logging
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from detlite.atomic_write import atomic_open
from detlite.config import ConfigError
from detlite.data import CocoDataset, DataError
from detlite.distributed import is_main
from detlite.engine.hooks import HOOKS, Hook
from detlite.engine.hooks.score_threshold import measured_threshold
from detlite.engine.run_files import METRICS_FILE
from detlite.inference.predictor import Predictor, build_predictor

from .detections import contact_sheet, draw_detections
from .metric_curves import plot_metrics

_MAX_IMAGES = 12

logger = logging.getLogger(__name__)


@HOOKS.register("RunDrawings")
class RunDrawings(Hook):
    """Writes curves.png and, if there are test sets, detections.png and report.html."""

    def __init__(self, cfg: CfgNode) -> None:
        self._cfg = cfg
        self._threshold = 0.0

    def after_evaluation(self, metrics: dict[str, dict[str, Any]]) -> None:
        self._threshold = measured_threshold(metrics.get(self.trainer.test_sets[0].name, {}))

    def after_train(self) -> None:
        if not is_main():
            return
        folder = Path(self._cfg.OUTPUT_DIR)
        plot_metrics(folder / METRICS_FILE, folder / "curves.png")
        if self.trainer.test_sets:
            predictor = build_predictor(self._cfg, self.trainer.model, self._threshold or 0.5)
            draw_sheet(predictor, self.trainer.test_sets[0], folder / "detections.png")
            if self._cfg.TEST.REPORT:
                write_report(folder)


def write_report(folder: Path) -> None:
    """Write report.html to the folder of a finished run, or log why this is impossible."""
    from detlite.apps.report.report_page import report_page
    from detlite.apps.report.runs import read_run

    try:
        page = report_page([read_run(folder, folder.resolve().name)], link_from=folder)
    except (ConfigError, DataError) as error:
        logger.info("no report: %s", error)
        return
    with atomic_open(folder / "report.html") as file:
        file.write(page)
    logger.info("report: %s", folder / "report.html")


def draw_sheet(predictor: Predictor, dataset: CocoDataset, path: Path) -> None:
    """Draw labels and, to the right, detections on images spread over a dataset, on one sheet."""
    step = max(len(dataset) // _MAX_IMAGES, 1)
    drawn = []
    for index in range(0, len(dataset), step)[:_MAX_IMAGES]:
        image, target = dataset[index]
        for objects in (target, predictor(image, target.get("proposals"))):
            drawn.append(draw_detections(image, objects, dataset.categories, min_score=0))
    contact_sheet(drawn).save(path)
