"""Training and evaluation by one call each: what the commands do, for notebooks and searches."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from .config import ConfigError, expand_path, load_config

FilePath = str | Path
# An annotation file in COCO's form, and the folder of its pictures.
Data = tuple[FilePath, FilePath]
Overrides = Mapping[str, Any] | Sequence[Any]


_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """What a run came to.

    Attributes:
        metrics: by data set, kind ("bbox", "segm", ...) and name ("AP", ...), 0 to 1; in processes
            other than the first nothing.
        output_dir: the folder of all its files.
        weights: the checkpoint that was trained or evaluated.
        best_weights: of training, the one of the best SOLVER.BEST_METRIC; None: none was kept.
        seconds: that it took, everything included.
    """

    metrics: dict[str, dict[str, Any]] = field(repr=False)
    output_dir: Path
    weights: Path
    seconds: float
    best_weights: Path | None = None


def train(
    config: FilePath | None = None,
    *,
    data: Data | None = None,
    test_data: Data | None = None,
    weights: FilePath | None = None,
    minutes: float | None = None,
    output_dir: FilePath | None = None,
    overrides: Overrides = (),
    resume: bool = False,
) -> Result:
    """Trains a detector and evaluates it, as `detlite train` does.

    Args:
        config: a YAML file, or the name of one of detlite's own. None: chosen by the rules of
            `detlite init`, or with `weights` their model and what those say of training; the log
            has the reasons. Of a run that is resumed, its own.
        data: (annotation file, folder of pictures) to train on, paths or URLs, as the set "train";
            the classes are its categories. None: as the config says.
        test_data: the same to evaluate on, as the set "test", beside `data`; with `data` alone
            nothing is evaluated.
        weights: checkpoint to start from, see MODEL.WEIGHT; what it knows of categories of the same
            name is kept.
        minutes: SOLVER.MAX_MINUTES. Without a config, in a single process, some training steps are
            timed before, mostly for a minute: by them a model is chosen, or for that of the
            `weights` the warm-up.
        output_dir: OUTPUT_DIR.
        overrides: of any keys, `{"SOLVER.BASE_LR": 0.01}`; they go before all others.
        resume: go on with the run in the output folder, if there is one.

    Raises:
        ConfigError, DataError, CheckpointError, NonFiniteLossError, LoaderProcessError: see
            `engine.run.run_training`; each message says what to do.
        StoppedError: SIGTERM or SIGHUP came; the step was finished and saved.
    """
    from .data import naming_dead_loaders
    from .distributed import process_group
    from .engine.best import BEST_CHECKPOINT
    from .engine.resuming import FINAL_CHECKPOINT
    from .engine.run import run_training
    from .engine.signals import StopSignals
    from .engine.train import files_of_run

    start = time.perf_counter()
    with StopSignals() as stop, stop.ending_at_once(), naming_dead_loaders():
        opts: dict[str, Any] = {}
        if test_data and not data:
            raise ConfigError(
                "test_data needs data to train on beside it; other sets than a config's own are "
                "measured by evaluate()"
            )
        if data:
            opts |= _datasets(train=data, test=test_data) | _classes(data)
        if weights is not None:
            opts |= {"MODEL.WEIGHT": str(weights), "MODEL.REINIT_HEADS": True}
        if minutes is not None:
            opts["SOLVER.MAX_MINUTES"] = minutes
        if output_dir is not None:
            opts["OUTPUT_DIR"] = str(output_dir)
        given = _pairs(opts) + _pairs(overrides)
        cfg = load_config(config, given)
        folder = Path(cfg.OUTPUT_DIR)
        if config is None and resume and files_of_run(folder):
            config = folder / "config.yaml"
            cfg = load_config(config, given)
        elif config is None and data is None:
            raise ConfigError("train() needs a config, or data to train on")
        with process_group(cfg.MODEL.DEVICE):
            if config is None:
                cfg = _config_by_rules(cfg, weights, given, resume)
            metrics = run_training(cfg, resume)
    best = folder / BEST_CHECKPOINT
    seconds = time.perf_counter() - start
    return Result(
        metrics, folder, folder / FINAL_CHECKPOINT, seconds, best if best.exists() else None
    )


def evaluate(
    weights: FilePath | None = None,
    *,
    config: FilePath | None = None,
    data: Data | None = None,
    output_dir: FilePath | None = None,
    overrides: Overrides = (),
) -> Result:
    """Evaluates a checkpoint, as `detlite test` does.

    Args:
        weights: the checkpoint; None: as the config's MODEL.WEIGHT says.
        config: a YAML file, or the name of one of detlite's own. None: what the checkpoint holds.
        data: (annotation file, folder of pictures), as the set "test". None: as the config says.
        output_dir: OUTPUT_DIR. None: as the config says; without one, of a checkpoint that is a
            file, the folder `evaluation` beside it.
        overrides: as for `train`.

    Raises:
        ConfigError, DataError, CheckpointError, LoaderProcessError: see
            `engine.run.run_evaluation`; each message says what to do.
    """
    from .conversion import weight_file
    from .data import naming_dead_loaders
    from .distributed import process_group
    from .engine.run import run_evaluation
    from .engine.weights import read_model_checkpoint

    start = time.perf_counter()
    opts: dict[str, Any] = {}
    if data:
        opts |= _datasets(test=data)
    if weights is not None:
        opts["MODEL.WEIGHT"] = str(weights)
    if output_dir is None and config is None and weights and "://" not in str(weights):
        # Not among the files of its training.
        output_dir = expand_path(str(weights)).parent / "evaluation"
    if output_dir is not None:
        opts["OUTPUT_DIR"] = str(output_dir)
    given = _pairs(opts) + _pairs(overrides)
    checkpoint = None
    if config is None:
        if weights is None:
            raise ConfigError("evaluate() needs weights, or a config whose MODEL.WEIGHT names them")
        cfg, checkpoint = read_model_checkpoint(weights, given)
    else:
        cfg = load_config(config, given)
    with naming_dead_loaders(), process_group(cfg.MODEL.DEVICE):
        metrics = run_evaluation(cfg, checkpoint)
    file = checkpoint.path if checkpoint else weight_file(cfg)
    return Result(metrics, Path(cfg.OUTPUT_DIR), file, time.perf_counter() - start)


def _pairs(overrides: Overrides) -> list[Any]:
    """Overrides as `load_config` takes them."""
    if isinstance(overrides, Mapping):
        return [item for pair in overrides.items() for item in pair]
    return list(overrides)


def _datasets(**sets: Data | None) -> dict[str, Any]:
    """The keys of sets called "train" and "test"; one that is None is left out."""
    catalog, keys = [], {}
    for name, files in sets.items():
        keys[f"DATASETS.{name.upper()}"] = (name,) if files else ()
        if files:
            annotations, images = map(_address, files)
            catalog.append({"name": name, "annotations": annotations, "images": images})
    return {"DATASETS.CATALOG": catalog, **keys}


def _address(path: FilePath) -> str:
    """A URL, or an absolute path, with `~` and variables as a config may have them."""
    from .data.remote import address, place

    return address(place(str(path)))


def _classes(data: Data) -> dict[str, Any]:
    from .data import DataError
    from .data.index_cache import open_index
    from .data.remote import local_copy, place

    with local_copy(place(str(data[0]))) as file:
        if not file.is_file():
            raise DataError(f"data: no annotation file {file}")
        count = len(open_index(file).content["categories"]) + 1
    return {f"MODEL.{part}.NUM_CLASSES": count for part in ("ROI_BOX_HEAD", "RETINANET")}


def _config_by_rules(
    cfg: CfgNode, weights: FilePath | None, given: list[Any], resume: bool
) -> CfgNode:
    """The config of a run that names none: `cfg` has the overrides `given`, and nothing else."""
    from .benchmark.steps import mean_step_seconds
    from .configuring import config_by_rules
    from .distributed import barrier
    from .engine.checkpoint import read_checkpoint
    from .engine.metrics import setup_logging
    from .engine.train import check_output_dir
    from .engine.weights import file_of

    folder = Path(cfg.OUTPUT_DIR)
    check_output_dir(folder, resume)
    checkpoint = None if weights is None else read_checkpoint(file_of(weights, given))
    barrier()  # before rank 0 writes what the others look for
    setup_logging(folder)
    cfg, choices = config_by_rules(given, mean_step_seconds, checkpoint)
    for one in choices:
        _logger.info("chosen: %s %s%s", one.key, one.value, one.reason and f": {one.reason}")
    return cfg
