"""Measure the first image of a new process: imports, loading, and the image.

    python -m benchmarks.latency.cold detlite FILE IMAGE THRESHOLD STARTED
    environments/ultralytics/bin/python -m benchmarks.latency.cold yolo FILE IMAGE THRESHOLD STARTED

STARTED is the start time of the process in seconds since 1970. The last line of the output contains
the milliseconds of each phase.
"""

import json
import sys
import time
from pathlib import Path


class Laps:
    """Milliseconds between calls; the first phase begins at the start of the process."""

    def __init__(self, started: float) -> None:
        self.phases: dict[str, float] = {}
        self._last = started

    def __call__(self, name: str) -> None:
        now = time.time()
        self.phases[name] = 1000 * (now - self._last)
        self._last = now


def detlite_phases(file: Path, image: str, threshold: float, lap: Laps) -> None:
    """Load a checkpoint or an export like `detlite predict`, and run it on an image twice."""
    import detlite.apps.batch_predict.predict_run  # noqa: F401
    from detlite.checkpoint.loading import build_model_from_checkpoint
    from detlite.inference.predictor import Predictor, build_predictor

    lap("imports")
    if file.suffix == ".pth":
        cfg, model = build_model_from_checkpoint(file)
        lap("load")
        predictor = build_predictor(cfg, model, threshold)
        lap("optimize")
    else:
        predictor = Predictor.from_checkpoint(file, score_thresh=threshold)
        lap("load")
    for name in ("first image", "second image"):
        predictor(image)
        lap(name)


def yolo_phases(file: Path, image: str, threshold: float, lap: Laps) -> None:
    """Load an export with ultralytics, and run it on an image twice."""
    from ultralytics import YOLO

    lap("imports")
    model = YOLO(str(file), task="segment")
    lap("load")
    for name in ("first image", "second image"):
        [result] = model.predict(image, conf=threshold, verbose=False)
        result.masks.data.numpy()
        lap(name)


def main() -> None:
    """Run the command line."""
    library, file, image, threshold, started = sys.argv[1:]
    lap = Laps(float(started))
    measure = {"detlite": detlite_phases, "yolo": yolo_phases}[library]
    measure(Path(file), image, float(threshold), lap)
    print(json.dumps(lap.phases))


if __name__ == "__main__":
    main()
