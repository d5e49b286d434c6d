"""The recipes: what is compared, each as what it changes.

All start from the config that `detlite init` writes for a data set: a Mask R-CNN on
EfficientNet-Lite0 from ImageNet's weights, anchors and sizes by the data, AdamW, a cosine.
"""

from __future__ import annotations

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


@dataclass(frozen=True)
class Recipe:
    """One line of the table.

    Args:
        what: it is or changes, in some words.
        overrides: keys that it sets, from the config that it starts from.
        tests: the name of the recipe whose trained weights it evaluates; empty: it trains its own.
        needs_masks: whether it means nothing for a set without masks.
        needs_rare: whether it means nothing for a set without rare categories.
    """

    what: str
    overrides: Callable[[CfgNode], Overrides]
    tests: str = ""
    needs_masks: bool = False
    needs_rare: bool = False

    def fits(self, cfg: CfgNode) -> bool:
        """Whether it means anything for the data set of a config."""
        masks = cfg.MODEL.MASK_ON or not self.needs_masks
        return masks and (cfg.DATALOADER.REPEAT_THRESHOLD > 0 or not self.needs_rare)


def _small(cfg: CfgNode) -> Overrides:
    """The small model as `detlite init` writes it: anchors and numbers of RoIs by the data."""
    own = yaml.safe_load((Path(str(CONFIGS)) / "_base_" / "small_fpn.yaml").read_text())
    keys: Overrides = dict(flatten({"MODEL": own["MODEL"]}))
    for by_data in ("ROI_HEADS.BATCH_SIZE_PER_IMAGE", "RPN.FPN_POST_NMS_TOP_N_TRAIN",
                    "RPN.FPN_POST_NMS_TOP_N_TEST"):  # fmt: skip
        del keys[f"MODEL.{by_data}"]
    return keys


def _resnet18(cfg: CfgNode) -> Overrides:
    base = load_config("_base_/from_scratch_fpn.yaml")
    keys = ("MODEL.BACKBONE.CONV_BODY", "MODEL.RESNETS.NORM", "INPUT.PIXEL_MEAN", "INPUT.PIXEL_STD")
    values = dict(flatten(base))
    return {key: values[key] for key in keys} | {"MODEL.WEIGHT": ""}


def _sizes(cfg: CfgNode, factor: float) -> Overrides:
    """Pictures that are larger or smaller, and anchors by the same factor."""

    def scaled(side: int) -> int:
        return max(round(side * factor / 32), 1) * 32

    node = cfg.INPUT
    anchors = [
        [side * factor for side in level] if isinstance(level, (list, tuple)) else level * factor
        for level in cfg.MODEL.RPN.ANCHOR_SIZES
    ]
    return {
        "INPUT.MIN_SIZE_TRAIN": [scaled(side) for side in node.MIN_SIZE_TRAIN],
        "INPUT.MAX_SIZE_TRAIN": scaled(node.MAX_SIZE_TRAIN),
        "INPUT.MIN_SIZE_TEST": scaled(node.MIN_SIZE_TEST),
        "INPUT.MAX_SIZE_TEST": scaled(node.MAX_SIZE_TEST),
        "MODEL.RPN.ANCHOR_SIZES": anchors,
    }


def _sgd(cfg: CfgNode) -> Overrides:
    """The published rate, 0.02 for 16 images, and decay."""
    rate = 0.02 * cfg.SOLVER.IMS_PER_BATCH / 16
    return {
        "SOLVER.OPTIMIZER": "SGD", "SOLVER.BASE_LR": rate, "SOLVER.WEIGHT_DECAY": 0.0001,
        "SOLVER.WEIGHT_DECAY_NORM": 0.0,
    }  # fmt: skip


def _scales(cfg: CfgNode) -> Overrides:
    size = cfg.INPUT.MIN_SIZE_TEST
    return {
        "TEST.BBOX_AUG.ENABLED": True,
        "TEST.BBOX_AUG.H_FLIP": True,
        "TEST.BBOX_AUG.SCALES": [round(0.75 * size), round(1.25 * size)],
        "TEST.BBOX_AUG.SCALE_H_FLIP": True,
    }


RECIPES: dict[str, Recipe] = {
    "resnet18": Recipe("ResNet-18 from random weights", _resnet18),
    "lite0": Recipe("Lite0 from ImageNet's weights", lambda cfg: {}),
    "small": Recipe("the small model from ImageNet's weights", _small),
    "scale_jitter": Recipe(
        "large-scale jitter, 0.5 to 2",
        lambda cfg: {
            "INPUT.SCALE_JITTER": [0.5, 2.0],
            "INPUT.CROP_SIZE": cfg.INPUT.MIN_SIZE_TEST,
        },
    ),
    "mosaic": Recipe(
        "half of the images mosaics of four pictures", lambda cfg: {"INPUT.MOSAIC_PROB": 0.5}
    ),
    "copy_paste": Recipe(
        "copy-paste into half of the images",
        lambda cfg: {"INPUT.COPY_PASTE_PROB": 0.5},
        needs_masks=True,
    ),
    "larger_batch": Recipe(
        "batches of four times as many pictures (give it a quarter of the steps)",
        lambda cfg: {
            "SOLVER.IMS_PER_BATCH": 4 * cfg.SOLVER.IMS_PER_BATCH,
            "SOLVER.BASE_LR": min(2 * cfg.SOLVER.BASE_LR, 0.0005),
        },
    ),
    "ema": Recipe("mean of the weights, decay 0.99", lambda cfg: {"SOLVER.EMA_DECAY": 0.99}),
    "steps": Recipe(
        "rate falls in two steps, no cosine",
        lambda cfg: {"SOLVER.LR_SCHEDULE": "multistep", "SOLVER.STEPS": [0.7, 0.9]},
    ),
    "no_warm_up": Recipe("no warm-up", lambda cfg: {"SOLVER.WARMUP_ITERS": 0}),
    "sgd": Recipe("SGD, no AdamW", _sgd),
    "giou": Recipe(
        "GIoU for both box losses",
        lambda cfg: {"MODEL.RPN.BOX_LOSS": "giou", "MODEL.ROI_BOX_HEAD.BOX_LOSS": "giou"},
    ),
    "norms_trained": Recipe(
        "batch norm of the body trained", lambda cfg: {"MODEL.TIMM.FROZEN_NORM": False}
    ),
    "stages_frozen": Recipe(
        "the body's first two stages as ImageNet left them",
        lambda cfg: {"MODEL.BACKBONE.FREEZE_CONV_BODY_AT": 2},
    ),
    "fewer_rois": Recipe(
        "half as many RoIs to train the heads on",
        lambda cfg: {
            "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE": cfg.MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE // 2
        },
    ),
    "masks_56": Recipe(
        "masks of 56 x 56, no 28 x 28",
        lambda cfg: {
            "MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION": 28,
            "MODEL.ROI_MASK_HEAD.RESOLUTION": 56,
        },
        needs_masks=True,
    ),
    "coco_anchors": Recipe(
        "anchors of 32 to 512 pixels, not fitted",
        lambda cfg: {
            "MODEL.RPN.ANCHOR_SIZES": [32, 64, 128, 256, 512],
            "MODEL.RPN.ASPECT_RATIOS": [0.5, 1.0, 2.0],
        },
    ),
    "no_repeat": Recipe(
        "rare categories not shown more often",
        lambda cfg: {"DATALOADER.REPEAT_THRESHOLD": 0.0},
        needs_rare=True,
    ),
    "half": Recipe("pictures of half of the side", lambda cfg: _sizes(cfg, 0.5)),
    "smaller": Recipe("pictures of 3/4 of the side", lambda cfg: _sizes(cfg, 0.75)),
    "larger": Recipe("pictures of 5/4 of the side", lambda cfg: _sizes(cfg, 1.25)),
    "test_scales": Recipe("lite0, tested in three sizes and mirrored", _scales, tests="lite0"),
}
