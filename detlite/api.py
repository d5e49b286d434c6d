"""Training and evaluation by one call each: what the commands do, for notebooks and searches."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from .config import ConfigError, load_config

FilePath = str | Path
# An annotation file in COCO's form, and the folder of its pictures.
Data = tuple[FilePath, FilePath]
Overrides = Mapping[str, Any] | Sequence[Any]


@dataclass(frozen=True)
class Result:
    """What a run came to.

    Attributes:
        metrics: by data set, kind ("bbox", "segm", ...) and name ("AP", ...), 0 to 1; in processes
            other than the first nothing.
        output_dir: the folder of all its files.
        weights: the checkpoint that was trained or evaluated.
        seconds: that it took, everything included.
    """

    metrics: dict[str, dict[str, Any]] = field(repr=False)
    output_dir: Path
    weights: Path
    seconds: float


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
        config: a YAML file, or the name of one of detlite's own. None: what `detlite init` writes
            for the data, or with `weights` their model, trained as that says; of a run that is
            resumed, its own.
        data: (annotation file, folder of pictures) to train on, paths or URLs, as the set "train";
            the classes are its categories. None: as the config says.
        test_data: the same to evaluate on, as the set "test", beside `data`; with `data` alone
            nothing is evaluated.
        weights: checkpoint to start from, see MODEL.WEIGHT; what it knows of categories of the same
            name is kept.
        minutes: SOLVER.MAX_MINUTES. Without a config some training steps are timed before, which
            takes about a minute more, so that the model fits them.
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
    from .engine.resuming import FINAL_CHECKPOINT
    from .engine.run import run_training
    from .engine.signals import StopSignals

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
        if config is None and resume:
            config = _written_config(given)
        if config is not None:
            cfg = load_config(config, given)
        elif data is not None:
            cfg = _config_by_rules(data, test_data, weights, minutes, given)
        else:
            raise ConfigError("train() needs a config, or data to train on")
        with process_group(cfg.MODEL.DEVICE):
            metrics = run_training(cfg, resume)
    folder = Path(cfg.OUTPUT_DIR)
    return Result(metrics, folder, folder / FINAL_CHECKPOINT, time.perf_counter() - start)


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
        output_dir = Path(weights).parent / "evaluation"  # not among the files of its training
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
    """A URL, or an absolute path."""
    return str(path) if "://" in str(path) else str(Path(path).absolute())


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
    data: Data,
    test_data: Data | None,
    weights: FilePath | None,
    minutes: float | None,
    given: list[Any],
) -> CfgNode:
    """The config of a run that names none, with the overrides `given`."""
    from .benchmark.steps import mean_step_seconds
    from .configuring import Facts, config_by_data, config_by_weights, measure
    from .data.remote import place
    from .distributed import torchrun_rank
    from .engine.checkpoint import read_checkpoint
    from .engine.weights import file_of
    from .installation import resources

    checkpoint = None if weights is None else read_checkpoint(file_of(weights, given))
    found = [measure(*(place(_address(part)) for part in one)) for one in (data, test_data) if one]
    facts = Facts(found[0], found[1] if test_data else None, resources())
    if torchrun_rank()[1] > 1:  # each would time steps of its own, and choose by them
        minutes = None
    if checkpoint is None:
        return config_by_data(facts, given, minutes, mean_step_seconds)
    return config_by_weights(facts, given, minutes, mean_step_seconds, checkpoint)


def _written_config(given: list[Any]) -> Path | None:
    """The config that a run in the output folder has written, if there is one."""
    folder = dict(zip(given[::2], given[1::2], strict=False)).get("OUTPUT_DIR")
    file = Path(folder or load_config().OUTPUT_DIR) / "config.yaml"
    return file if file.exists() else None
