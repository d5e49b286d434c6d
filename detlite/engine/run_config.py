"""The config of a training run, from a file, the data, the weights, the minutes and overrides."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from detlite.checkpoint.contents import Checkpoint
from detlite.checkpoint.loading import read_weights
from detlite.checkpoint.stored_config import apply_convention, checkpoint_config
from detlite.config import changed, default_config, load_config
from detlite.config.loading import flatten
from detlite.distributed import world_size

from .checkpointer import newest_checkpoint
from .run_files import CONFIG_FILE, choose_output_dir, files_of_run

logger = logging.getLogger(__name__)


def load_run_config(
    config: str | Path | None, opts: Sequence[Any], resume: bool
) -> tuple[CfgNode, bool]:
    """Load the config of a training run, and choose an OUTPUT_DIR that `opts` do not name.

    Returns:
        The config, and True if it comes from a file: `config` or that of the run to resume.
        Otherwise it has only the overrides, and the other keys must be chosen.
    """

    named = dict(zip(opts[::2], opts[1::2], strict=True)).get("OUTPUT_DIR")
    if resume and config is None:  # first, because its config may list IMPORTS for `opts`
        folder = Path(str(named or choose_output_dir(Path(default_config().OUTPUT_DIR), resume)))
        config = folder / CONFIG_FILE if files_of_run(folder) else None
    if resume and named is None and config and Path(config).name == CONFIG_FILE:
        parent = Path(config).parent  # may have been moved
        named = parent if files_of_run(parent) else None

    def choose_folder(cfg: CfgNode) -> None:
        cfg.OUTPUT_DIR = str(named or choose_output_dir(Path(cfg.OUTPUT_DIR), resume))

    return load_config(config, opts, choose_folder), config is not None


def with_all_images(cfg: CfgNode) -> CfgNode:
    """Return a config that trains on the evaluation sets, too, and evaluates on none."""
    datasets = cfg.DATASETS
    added = [name for name in datasets.TEST if name not in datasets.TRAIN]
    cfg = changed(cfg, {"DATASETS.TRAIN": (*datasets.TRAIN, *added), "DATASETS.TEST": ()})
    logger.warning(
        "training on all images (%s): no validation images remain, so this run is not evaluated. "
        "Use the settings of a run that was", ", ".join(cfg.DATASETS.TRAIN)
    )  # fmt: skip
    return cfg


def complete_config(cfg: CfgNode, resume: bool) -> tuple[CfgNode, Checkpoint | None]:
    """Return the config with what follows from the checkpoint that a run starts from.

    These are the convention of the weights, and batch norm that is frozen because of small batches.

    Returns:
        The config, and the initial weights of a new run, if any. A resumed run does not read them,
        because their file may be gone.
    """
    if resume and (previous := newest_checkpoint(Path(cfg.OUTPUT_DIR))):
        stored = dict(flatten(checkpoint_config(previous) or {}))
        return resolve_frozen_norms(apply_convention(cfg, previous), stored), None
    cfg, weights = read_weights(cfg)
    return resolve_frozen_norms(cfg), weights


def resolve_frozen_norms(cfg: CfgNode, resumed: Mapping[str, Any] | None = None) -> CfgNode:
    """Freeze the backbone's batch norm in the config if it would see too few images.

    The limit is MODEL.BACKBONE.FREEZE_NORM_BELOW images per forward pass. It is resolved once,
    before training, because a later evaluation on another machine must build the same model. The
    choice of a `resumed` config, whose keys are given, is kept with any number of processes.
    """
    limit = cfg.MODEL.BACKBONE.FREEZE_NORM_BELOW
    norm, in_all = cfg.MODEL.RESNETS.NORM, cfg.SOLVER.IMS_PER_BATCH // cfg.SOLVER.ACCUMULATION_STEPS
    images = {"BN": in_all // world_size(), "SyncBN": in_all}
    if resumed and limit > 0:
        norm = resumed.get("MODEL.RESNETS.NORM", norm)
    elif images.get(norm, limit) < limit:
        norm = "FrozenBN"
        logger.info(
            "the backbone's batch norm is frozen: it would see fewer images per forward pass than "
            "MODEL.BACKBONE.FREEZE_NORM_BELOW (%d)", limit,
        )  # fmt: skip
    return changed(cfg, {"MODEL.RESNETS.NORM": norm})
