"""Training and evaluation by one call each: what the commands do, for notebooks and searches."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yacs.config import CfgNode

from detlite.config import ConfigError, expand_path, load_config

if TYPE_CHECKING:
    from detlite.data.data_arguments import Data, FilePath, Pair

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
            or the path of a folder or file as `detlite init --data` takes it, of whose pictures one
            in five is set apart to evaluate on, unless `test_data` or the folder says on which. The
            classes are its categories. None: as the config says.
        test_data: the same to evaluate on, as the set "test"; beside `data` that is a pair nothing
            is evaluated without it.
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
            `engine.run.run_training`; each message says what to do. A ConfigError also where the
            output folder holds a run that is not resumed, or `data` is no such thing.
        StoppedError: SIGTERM or SIGHUP came; the step was finished and saved.
    """
    from detlite.data import naming_dead_loaders
    from detlite.data.data_arguments import training_data
    from detlite.distributed import barrier, process_group
    from detlite.engine.hooks.best_checkpoint import BEST_CHECKPOINT
    from detlite.engine.hooks.metrics import logging_to
    from detlite.engine.hooks.signals import StopSignals
    from detlite.engine.resume import FINAL_CHECKPOINT
    from detlite.engine.run import run_training
    from detlite.engine.trainer import check_output_dir, files_of_run

    start = time.perf_counter()
    with StopSignals() as stop, stop.ending_at_once(), naming_dead_loaders():
        opts: dict[str, Any] = {}
        how = ""
        if not isinstance(config, str | Path | None):
            raise ConfigError(f"config is {config!r}: it must be a file; data are named as `data=`")
        if test_data is not None and data is None:
            raise ConfigError(
                "test_data needs data to train on beside it; other sets than a config's own are "
                "measured by evaluate()"
            )
        if data is not None:
            opts, how = training_data(data, test_data)
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
            check_output_dir(folder, resume)
            barrier()  # before rank 0 writes what the others look for
            with logging_to(folder):
                if how:
                    _logger.info("data: %s", how)
                if config is None:
                    cfg = _config_by_rules(weights, given)
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
    data: Pair | None = None,
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
    from detlite.conversion import weight_file
    from detlite.conversion.checkpoint.loading import read_model_checkpoint
    from detlite.data import naming_dead_loaders
    from detlite.data.data_arguments import evaluation_data
    from detlite.distributed import process_group
    from detlite.engine.hooks.metrics import logging_to
    from detlite.engine.run import run_evaluation

    start = time.perf_counter()
    opts: dict[str, Any] = {}
    if data is not None:
        opts |= evaluation_data(data)
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
    folder = Path(cfg.OUTPUT_DIR)
    with naming_dead_loaders(), process_group(cfg.MODEL.DEVICE), logging_to(folder):
        metrics = run_evaluation(cfg, checkpoint)
    file = checkpoint.path if checkpoint else weight_file(cfg)
    return Result(metrics, folder, file, time.perf_counter() - start)


def _pairs(overrides: Overrides) -> list[Any]:
    """Overrides as `load_config` takes them."""
    if isinstance(overrides, Mapping):
        return [item for pair in overrides.items() for item in pair]
    return list(overrides)


def _config_by_rules(weights: FilePath | None, given: list[Any]) -> CfgNode:
    """The config of a run that names none: the overrides `given` go before the rules."""
    from detlite.apps.autoconfig import config_by_rules
    from detlite.apps.autoconfig.step_timing import mean_step_seconds
    from detlite.conversion.checkpoint.files import read_checkpoint
    from detlite.conversion.checkpoint.loading import file_of

    checkpoint = None if weights is None else read_checkpoint(file_of(weights, given))
    cfg, choices = config_by_rules(given, mean_step_seconds, checkpoint)
    for one in choices:
        _logger.info("chosen: %s %s%s", one.key, one.value, one.reason and f": {one.reason}")
    return cfg
