"""Draw the metrics of a training run and detections on test images at its end."""

from pathlib import Path

from yacs.config import CfgNode

from detlite.data import CocoDataset
from detlite.distributed import is_main
from detlite.engine.hooks import HOOKS, Hook
from detlite.engine.run_files import METRICS_FILE
from detlite.inference.predictor import Predictor, build_predictor

from .detections import contact_sheet, draw_detections
from .metric_curves import plot_metrics

_MAX_IMAGES = 12


@HOOKS.register("RunDrawings")
class RunDrawings(Hook):
    """Writes curves.png and, if there is a test set, detections.png to OUTPUT_DIR."""

    def __init__(self, cfg: CfgNode) -> None:
        self._cfg = cfg

    def after_train(self) -> None:
        if not is_main():
            return
        folder = Path(self._cfg.OUTPUT_DIR)
        plot_metrics(folder / METRICS_FILE, folder / "curves.png")
        if self.trainer.test_sets:
            predictor = build_predictor(self._cfg, self.trainer.model)
            draw_sheet(predictor, self.trainer.test_sets[0], folder / "detections.png")


def draw_sheet(predictor: Predictor, dataset: CocoDataset, path: Path) -> None:
    """Draw labels and, to the right, detections on images spread over a dataset, on one sheet."""
    step = max(len(dataset) // _MAX_IMAGES, 1)
    drawn = []
    for index in range(0, len(dataset), step)[:_MAX_IMAGES]:
        image, target = dataset[index]
        for objects in (target, predictor(image, target.get("proposals"))):
            drawn.append(draw_detections(image, objects, dataset.categories))
    contact_sheet(drawn).save(path)
