"""The training losses on the test sets, for TEST.LOSS."""

import math

import torch
from torch import nn
from yacs.config import CfgNode

from detlite.data import CocoDataset, build_dataset, build_test_loader
from detlite.distributed import all_gather_objects
from detlite.evaluation.metrics import MetricValue
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.optimize_for_training import optimize_for_training
from detlite.modeling.precision import autocast

from .rng import preserve_rng


def build_loss_dataset(cfg: CfgNode, name: str) -> CocoDataset:
    """Build a dataset of DATASETS.TEST like a training set: with masks, annotated images only."""
    return build_dataset(_train_on_test_sets(cfg), name, train=True)


def validation_loss(cfg: CfgNode, model: DetectionModel, name: str) -> dict[str, float | None]:
    """Compute the losses on a dataset of DATASETS.TEST; every process calls it for its part.

    The result is a mean over images, each in a separate batch. Many losses are means over the boxes
    of a batch, so the result would otherwise depend on the number of processes and on
    TEST.IMS_PER_BATCH. Images are resized as in evaluation and not augmented. Batch norm uses its
    running statistics. The seed of each image determines which boxes are sampled, and the random
    generators and the mode of the model are restored afterwards.

    Returns:
        `total` and each loss without the prefix "loss_", in every process; None if not finite.
    """
    optimize_for_training(model)  # rounds like the training losses
    dataset = build_loss_dataset(cfg, name)
    rows: list[dict[str, float]] = []
    was_training = model.training
    with torch.no_grad(), preserve_rng(model.device):
        model.train()
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        for images, targets in build_test_loader(_train_on_test_sets(cfg), dataset):
            for image, target in zip(images, targets, strict=True):
                torch.manual_seed((cfg.SEED + target["image_id"]) % 2**63)
                with autocast(cfg.DTYPE, model.device):
                    losses = model([image], [target])
                values = torch.stack([loss.float() for loss in losses.values()]).tolist()
                rows.append(dict(zip(losses, values, strict=True)))
    model.train(was_training)
    all_rows = [row for part in all_gather_objects(rows) for row in part]
    # fsum is exact, so neither the order nor the number of processes matters.
    means = {
        key.removeprefix("loss_"): math.fsum(row[key] for row in all_rows) / len(all_rows)
        for key in all_rows[0]
    }
    result = {"total": math.fsum(means.values()), **means}
    return {
        key: MetricValue(value, lower_is_better=True) if math.isfinite(value) else None
        for key, value in result.items()
    }


def _train_on_test_sets(cfg: CfgNode) -> CfgNode:
    """Return the config with the test sets as training sets, without test-time augmentation."""
    cfg = cfg.clone()
    cfg.defrost()
    cfg.DATASETS.TRAIN = cfg.DATASETS.TEST
    cfg.DATASETS.PROPOSAL_FILES_TRAIN = cfg.DATASETS.PROPOSAL_FILES_TEST
    cfg.DATASETS.PRECOMPUTED_PROPOSAL_TOPK_TRAIN = cfg.DATASETS.PRECOMPUTED_PROPOSAL_TOPK_TEST
    cfg.TEST.BBOX_AUG.ENABLED, cfg.TEST.TILE = False, 0  # both load images without resizing
    return cfg
