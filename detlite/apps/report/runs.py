"""What a training or a test left in its folder."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from detlite.apps.drawing.curves import read_metrics
from detlite.config import ConfigError, load_config
from detlite.data.errors import DataError
from detlite.engine.run_files import METRICS_FILE
from detlite.evaluation.evaluators import predicted_kinds
from detlite.evaluation.results import Results

# The line that `run_inference` logs.
_SPEED = re.compile(
    r" I (?P<name>.+): (?P<images>\d+) images in (?P<seconds>[\d.]+) s, (?P<rate>[\d.]+) images/s "
    r"in each process, in (?P<dtype>.+)$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Speed:
    """How fast a data set was evaluated."""

    images: int
    rate: float  # images a second, in each process
    dtype: str


@dataclass(frozen=True, eq=False)
class LoggedRun:
    """An output folder.

    Attributes:
        name: what it is called on a page.
        cfg: what was run.
        evaluation: evaluation.json as {data set: {kind: {metric: value}}}; empty if there is none.
        lines: of metrics.jsonl; none of a test.
        speeds: of the evaluation of each data set, the last one, as far as log.txt tells.
    """

    name: str
    folder: Path
    cfg: CfgNode
    evaluation: dict[str, dict[str, Any]]
    lines: list[dict[str, Any]]
    speeds: dict[str, Speed]

    @property
    def kinds(self) -> tuple[str, ...]:
        """What it detects: "bbox", and "segm" and "keypoints" with such heads."""
        return predicted_kinds(self.cfg)

    def results(self, dataset: str) -> Results:
        """The detections on a data set.

        Raises:
            DataError: the file is missing or not in COCO's form.
        """
        path = self.folder / f"results_{dataset}.json"
        if not path.is_file():
            raise DataError(
                f"{self.folder} holds no detections on {dataset} ({path.name}): `detlite test "
                f"--config {self.folder / 'config.yaml'} MODEL.WEIGHT CHECKPOINT OUTPUT_DIR "
                f"{self.folder}` makes them"
            )
        rows = _read_json(path)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise DataError(f"{path}: is not a list of COCO results")
        try:
            return Results.from_coco(rows, self.kinds)
        except DataError as error:
            raise DataError(f"{path}: {error}") from error


def read_run(folder: Path, name: str) -> LoggedRun:
    """Reads a run, but for its detections.

    Raises:
        ConfigError: the folder holds no run, or one of a model that detects nothing; or as from
            `load_config`.
        DataError: evaluation.json or metrics.jsonl cannot be read.
    """
    config = folder / "config.yaml"
    if not config.is_file():
        raise ConfigError(
            f"{folder} holds no config.yaml, which `detlite train` and `detlite test` write into "
            "OUTPUT_DIR: name such a folder"
        )
    cfg = load_config(config)
    if "bbox" not in predicted_kinds(cfg):
        raise ConfigError(f"{folder}: its model proposes regions, and a report is about detections")
    if not cfg.DATASETS.TEST:
        raise ConfigError(f"{config}: DATASETS.TEST is empty: nothing was measured")
    evaluation = {}
    if (folder / "evaluation.json").is_file():
        evaluation = _read_json(folder / "evaluation.json")
        if not isinstance(evaluation, dict):
            raise DataError(f"{folder / 'evaluation.json'}: is not what `detlite test` writes")
        if len(cfg.DATASETS.TEST) == 1:
            evaluation = {cfg.DATASETS.TEST[0]: evaluation}
    history, log = folder / METRICS_FILE, folder / "log.txt"
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    return LoggedRun(
        name=name,
        folder=folder,
        cfg=cfg,
        evaluation=evaluation,
        lines=read_metrics(history) if history.is_file() else [],
        speeds={
            row["name"]: Speed(int(row["images"]), float(row["rate"]), row["dtype"])
            for row in _SPEED.finditer(text)
        },
    )


def names_of(folders: list[Path]) -> list[str]:
    """What folders are called: by their last part, or by their paths if two have the same."""
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
