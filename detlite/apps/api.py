"""Functions that train and evaluate like the commands, for notebooks and parameter searches."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detlite.apps.autoconfig.configs import build_run_config
from detlite.apps.dataset_formats.data_arguments import (
    Data,
    FilePath,
    Pair,
    evaluation_data,
    keep_entry_options,
    training_data,
)
from detlite.apps.report.run_drawings import draw_run
from detlite.checkpoint.loading import read_model_checkpoint, weight_file
from detlite.checkpoint.stored_config import explain_imports
from detlite.config import ConfigError, Overrides, as_list, changed, expand_path, load_config
from detlite.data import explain_dead_loader
from detlite.distributed import barrier
from detlite.engine.hooks import Hook
from detlite.engine.rng import preserve_rng
from detlite.engine.run import exclusive_run, run_evaluation, run_training
from detlite.engine.run_config import load_run_config, with_all_images
from detlite.engine.run_files import (
    BEST_CHECKPOINT,
    CONFIG_FILE,
    FINAL_CHECKPOINT,
    check_output_dir,
)
from detlite.engine.signals import StopSignals
from detlite.modeling.build import torch_device

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """Result of a training or evaluation run.

    Attributes:
        metrics: values in 0 to 1 by dataset, kind ("bbox", "segm", ...) and name ("AP", ...); empty
            in processes other than rank 0.
        output_dir: folder of all files of the run.
        weights: checkpoint that was trained or evaluated.
        seconds: duration of the call.
        best_weights: checkpoint with the best SOLVER.BEST_METRIC; None if none was kept.
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
    hooks: Sequence[Hook] = (),
    all_images: bool = False,
    single_class: bool = False,
    images: FilePath | None = None,
    masks: str | None = None,
    skip_bad: bool = False,
    group_by: str | None = None,
) -> Result:
    """Train a detector and evaluate it, as `detlite train` does.

    The state of the caller's random generators does not change.

    Args:
        config: YAML file, or the name of a config that detlite includes; or a folder or annotation
            file (.json), which is used as `data`. None: choose a config for the data by the rules
            of `detlite init`; with `weights`, use their model and choose only the training
            settings. The log states the reasons. A resumed run uses its own config.
        data: training data, as (annotation file, image folder) with paths or URLs, or a path as for
            `detlite init --data`. For a path, one image in five is set aside for evaluation, unless
            `test_data` or the folder provides a test set. The dataset's name is "train", and its
            categories are the classes. None: the datasets of the config.
        test_data: evaluation data in the same form, with the name "test". Without it, a model
            trained on a pair is not evaluated.
        weights: initial checkpoint, see MODEL.WEIGHT, or "coco" for a model trained on COCO that
            fits the data and the machine. Predictors of categories with the same name are kept.
        minutes: SOLVER.MAX_MINUTES. Without a config and in a single process, some training steps
            are timed first, for at most a minute, to choose the batch and the warm-up.
        output_dir: OUTPUT_DIR. If neither this nor `overrides` name it and the config's folder
            contains a run, a number is appended; a resumed run continues the last one.
        overrides: config keys and values, `{"SOLVER.BASE_LR": 0.01}`. They take precedence over all
            other arguments.
        resume: continue the run in the output folder, if there is one.
        hooks: hooks to call around the training steps, see `detlite.engine.hooks.Hook`.
        all_images: train on the evaluation images, too: a last run, which is not evaluated.
        single_class, images, masks, skip_bad, group_by: how `data`, a path, are read: the options
            of `detlite init`.

    Raises:
        ConfigError, DataError, CheckpointError, NonFiniteLossError, LoaderProcessError: the message
            says what to do.
        StoppedError: SIGTERM, SIGHUP or SIGINT arrived; the step was finished and saved.
    """
    start = time.perf_counter()
    hint = "start the same command again, or resume it if it had trained"
    with StopSignals() as stop, stop.ending_immediately(hint), explain_dead_loader():
        if not isinstance(hooks, list | tuple) or not all(isinstance(x, Hook) for x in hooks):
            raise ConfigError(f"hooks is {hooks!r}: pass a list of Hook objects")
        if data is None and is_data(config):
            config, data = None, config
        options = {"single_class": single_class, "images": images, "masks": masks,
                   "skip_bad": skip_bad, "group_by": group_by}  # fmt: skip
        keys, summary = _data_keys(data, test_data, options)
        if data is not None and config is not None:
            keep_entry_options(keys, load_config(config, overrides).DATASETS)
        given = {"SOLVER.MAX_MINUTES": minutes, "OUTPUT_DIR": output_dir and str(output_dir)}
        keys |= {key: value for key, value in given.items() if value is not None}
        if weights is not None:
            keys |= {"MODEL.WEIGHT": str(weights), "MODEL.REINIT_HEADS": True}
        opts = as_list(keys) + as_list(overrides)
        cfg, is_complete = load_run_config(config, opts, resume)
        if not is_complete and data is None:
            raise ConfigError("train() needs a config, or data to train on")
        folder, device = Path(cfg.OUTPUT_DIR), torch_device(cfg.MODEL.DEVICE)
        with exclusive_run(folder, cfg.MODEL.DEVICE), preserve_rng(device):
            check_output_dir(folder, resume)
            barrier()  # rank 0 must not write files before all processes have checked
            if summary:
                _logger.info("data: %s", summary)
            if not is_complete:
                cfg = build_run_config(weights, [*opts, "OUTPUT_DIR", str(folder)])
            cfg = with_all_images(cfg) if all_images else cfg
            metrics = run_training(cfg, draw_run, resume, hooks)
    seconds = time.perf_counter() - start
    best = folder / BEST_CHECKPOINT if (folder / BEST_CHECKPOINT).exists() else None
    return Result(metrics, folder, folder / FINAL_CHECKPOINT, seconds, best)


def _data_keys(
    data: Data | None, test_data: Data | None, options: dict[str, Any]
) -> tuple[dict[str, Any], str]:
    """Return the data arguments of `detlite.train` as config keys, and a sentence about them.

    Raises ConfigError or DataError if the data cannot be used.
    """
    if test_data is not None and data is None:
        raise ConfigError(
            "test_data needs training data: pass `data` too, or evaluate on other datasets than "
            "the config's with evaluate()"
        )
    options = {name: value for name, value in options.items() if value not in (None, False)}
    if options and not isinstance(data, str | Path):
        raise ConfigError(
            f"{', '.join(options)} needs data as a folder or annotation file. For a config, write "
            "one with the same options of detlite init"
        )
    return ({}, "") if data is None else training_data(data, test_data, **options)


def evaluate(
    weights: FilePath | None = None,
    *,
    config: FilePath | None = None,
    data: Pair | None = None,
    output_dir: FilePath | None = None,
    overrides: Overrides = (),
) -> Result:
    """Evaluate a checkpoint, as `detlite test` does.

    Args:
        weights: the checkpoint. None: MODEL.WEIGHT of the config.
        config: YAML file, or the name of a config that detlite includes. None: the config stored in
            the checkpoint.
        data: (annotation file, image folder), with the name "test". None: the test sets of the
            config.
        output_dir: OUTPUT_DIR. None: the config's; without a config, or with the one of the run,
            the folder `evaluation` next to a local checkpoint.
        overrides: see `train`.

    Raises:
        ConfigError, DataError, CheckpointError, LoaderProcessError: the message says what to do.
    """
    start = time.perf_counter()
    data_keys = {} if data is None else evaluation_data(data)
    opts = {} if weights is None else {"MODEL.WEIGHT": str(weights)}
    if output_dir is None and weights and "://" not in str(weights):
        run = expand_path(str(weights)).parent
        if config is None or Path(config).resolve() == (run / CONFIG_FILE).resolve():
            # Do not overwrite the evaluation of the training run, which may have been moved.
            output_dir = run / "evaluation"
    if output_dir is not None:
        opts["OUTPUT_DIR"] = str(output_dir)
    all_opts = as_list(opts) + as_list(overrides)
    checkpoint = None
    if config is None:
        if weights is None:
            raise ConfigError("evaluate() needs weights, or a config with MODEL.WEIGHT")
        cfg, checkpoint = read_model_checkpoint(weights, all_opts)
    else:
        cfg = load_config(config, all_opts)
    if data_keys:
        keep_entry_options(data_keys, cfg.DATASETS)
        cfg = changed(cfg, data_keys)
    folder = Path(cfg.OUTPUT_DIR)
    file = checkpoint.path if checkpoint else weight_file(cfg)
    with (
        explain_dead_loader(),
        exclusive_run(folder, cfg.MODEL.DEVICE),
        explain_imports(checkpoint.config if checkpoint else "", file, bool(cfg.IMPORTS)),
    ):
        metrics = run_evaluation(cfg, checkpoint)
    return Result(metrics, folder, file, time.perf_counter() - start)


def is_data(config: Any) -> bool:
    """Return True if the first argument of `train` is a folder or annotation file, not a config.

    Raises:
        ConfigError: it is neither.
    """
    if not isinstance(config, str | Path | None):
        raise ConfigError(f"config is {config!r}: it must be a file; pass data as `data=`")
    return config is not None and (Path(config).is_dir() or Path(config).suffix == ".json")
