"""The loss on a test set: how training's own measure goes on pictures that are not trained on."""

from __future__ import annotations

import math

import torch
from torch import nn
from yacs.config import CfgNode

from detlite.data import CocoDataset, build_dataset, build_test_loader
from detlite.distributed import all_gather_objects
from detlite.modeling.detector import Detector
from detlite.modeling.precision import autocast

from .rng import generators_kept

KIND = "loss"  # among the metrics of a data set; the lower, the better


def build_loss_dataset(cfg: CfgNode, name: str) -> CocoDataset:
    """A set of DATASETS.TEST as training sees it: with masks, and with annotated images alone.

    Raises:
        ConfigError, DataError: see `build_dataset`; also that no image has a usable annotation.
    """
    return build_dataset(_as_training(cfg), name, train=True)


def validation_loss(cfg: CfgNode, model: Detector, name: str) -> dict[str, float | None]:
    """The losses on a set of DATASETS.TEST; every process calls it for its share.

    A mean over images, each of which is alone in its batch, as many a loss is a mean over the boxes
    of a batch: the number of processes and TEST.IMS_PER_BATCH change nothing. Images are resized
    as for evaluation and not augmented. Norms take their running statistics. Boxes are sampled by
    a seed of the image, and the generators are left as they were.

    Returns:
        `total`, and each loss without "loss_", in every process; None where one is not finite.
    """
    dataset = build_loss_dataset(cfg, name)
    rows: list[dict[str, float]] = []
    was_training = model.training
    with torch.no_grad(), generators_kept(model.device):
        model.train()
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        for images, targets in build_test_loader(_as_training(cfg), dataset):
            for image, target in zip(images, targets, strict=True):
                torch.manual_seed((cfg.SEED + target["image_id"]) % 2**63)
                with autocast(cfg.DTYPE, model.device):
                    losses = model([image], [target])
                values = torch.stack([loss.float() for loss in losses.values()]).tolist()
                rows.append(dict(zip(losses, values, strict=True)))
    model.train(was_training)
    every = [losses for part in all_gather_objects(rows) for losses in part]
    # Exact sums: their order, and so the number of processes, does not matter.
    means = {
        key.removeprefix("loss_"): math.fsum(losses[key] for losses in every) / len(every)
        for key in every[0]
    }
    found = {"total": math.fsum(means.values()), **means}
    return {key: value if math.isfinite(value) else None for key, value in found.items()}


def _as_training(cfg: CfgNode) -> CfgNode:
    """The config whose training sets are the test sets."""
    cfg = cfg.clone()
    cfg.defrost()
    cfg.DATASETS.TRAIN = cfg.DATASETS.TEST
    cfg.DATASETS.PROPOSAL_FILES_TRAIN = cfg.DATASETS.PROPOSAL_FILES_TEST
    cfg.DATASETS.PRECOMPUTED_PROPOSAL_TOPK_TRAIN = cfg.DATASETS.PRECOMPUTED_PROPOSAL_TOPK_TEST
    cfg.TEST.BBOX_AUG.ENABLED, cfg.TEST.TILE = False, 0  # which resize by themselves
    return cfg
