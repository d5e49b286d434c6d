"""Rules: which values of several config keys contradict each other, and what to do about it."""

from collections.abc import Callable
from typing import Any

from yacs.config import CfgNode

from detlite.errors import ConfigError


def check_rules(cfg: CfgNode) -> None:
    """Raise a ConfigError if the values of `cfg` break one of `RULES`."""
    for broken, message in RULES:
        if found := broken(cfg):
            raise ConfigError(message.format(found, **cfg))


def _needs_roi_heads(cfg: CfgNode) -> str:
    """Return the keys that are set although the model has no RoI heads."""
    if cfg.MODEL.META_ARCHITECTURE not in ("RetinaNet", "ProposalNetwork"):
        return ""
    settings = {f"MODEL.{k}": cfg.MODEL[k] for k in ("MASK_ON", "KEYPOINT_ON", "LOAD_PROPOSALS")}
    settings["MODEL.ROI_BOX_HEAD.PASSES above 1"] = cfg.MODEL.ROI_BOX_HEAD.PASSES > 1
    settings["features in TEST.EXTRA_OUTPUTS"] = "features" in cfg.TEST.EXTRA_OUTPUTS
    return " and ".join(key for key, value in settings.items() if value)


def _stages_and_shared_features(cfg: CfgNode) -> str:
    """Return the keys of the stages of the box head and of a head that shares its features."""
    several = {
        "MODEL.ROI_HEADS.CASCADE_IOUS": cfg.MODEL.ROI_HEADS.CASCADE_IOUS,
        "MODEL.ROI_BOX_HEAD.PASSES above 1": cfg.MODEL.ROI_BOX_HEAD.PASSES > 1,
    }
    for name, on in (("MASK", cfg.MODEL.MASK_ON), ("KEYPOINT", cfg.MODEL.KEYPOINT_ON)):
        key = "SHARE_BOX_FEATURE_EXTRACTOR"
        if on and any(several.values()) and cfg.MODEL[f"ROI_{name}_HEAD"][key]:
            stages = next(key for key, value in several.items() if value)
            return f"{stages} needs MODEL.ROI_{name}_HEAD.{key} False"
    return ""


def _unequal_channels(cfg: CfgNode) -> bool:
    channels, values = len(cfg.INPUT.PIXEL_MEAN), len(cfg.INPUT.VALUE_RANGE)
    return len(cfg.INPUT.PIXEL_STD) != channels or values not in (0, 2, 2 * channels)


def _contradicts_schedule_free(cfg: CfgNode) -> str:
    """Return the key that ScheduleFreeAdamW does not support, its value and what is needed."""
    solver = cfg.SOLVER
    if solver.OPTIMIZER != "ScheduleFreeAdamW":
        return ""
    needs = {
        "LR_SCHEDULE": ("constant", solver.LR_SCHEDULE == "constant"),
        "MOMENTUM": ("above 0, such as 0.9", solver.MOMENTUM > 0),
        "EMA_DECAY": ("0, because it averages the weights itself", solver.EMA_DECAY == 0),
    }
    for key, (need, holds) in needs.items():
        if not holds:
            name = f"SOLVER.{key}"
            return f"{name} is {solver[key]}, but ScheduleFreeAdamW needs {name} {need}"
    return ""


# Functions of a config, and the messages if they return something true. A message can contain the
# returned value, {}, and values of the config.
RULES: tuple[tuple[Callable[[CfgNode], Any], str], ...] = (
    (
        _unequal_channels,
        "INPUT.PIXEL_MEAN is {INPUT.PIXEL_MEAN}, one value per channel: INPUT.PIXEL_STD "
        "({INPUT.PIXEL_STD}) needs as many values, and INPUT.VALUE_RANGE ({INPUT.VALUE_RANGE}) one "
        "pair or as many pairs",
    ),
    (
        lambda cfg: (
            cfg.MODEL.BACKBONE.CONV_BODY.startswith("timm/") and cfg.MODEL.RESNETS.NORM == "SyncBN"
        ),
        "MODEL.RESNETS.NORM is SyncBN, which timm models do not have: set it to BN or FrozenBN",
    ),
    (
        _needs_roi_heads,
        "{} need RoI heads, which a {MODEL.META_ARCHITECTURE} does not have: remove them from the "
        "config",
    ),
    (
        lambda cfg: cfg.MODEL.META_ARCHITECTURE == "ProposalNetwork" and cfg.TEST.EXTRA_OUTPUTS,
        "TEST.EXTRA_OUTPUTS must be empty: a ProposalNetwork has no classes",
    ),
    # The features of a box head with several stages pass scaled gradients to the backbone.
    (_stages_and_shared_features, "{}"),
    (
        lambda cfg: cfg.MODEL.ROI_HEADS.CASCADE_IOUS and cfg.MODEL.ROI_BOX_HEAD.PASSES > 1,
        "MODEL.ROI_BOX_HEAD.PASSES is for a single box head: set it to 1, or "
        "MODEL.ROI_HEADS.CASCADE_IOUS ()",
    ),
    (
        lambda cfg: (
            cfg.MODEL.ROI_HEADS.CASCADE_IOUS
            and len(cfg.MODEL.ROI_HEADS.CASCADE_BBOX_REG_WEIGHTS)
            != len(cfg.MODEL.ROI_HEADS.CASCADE_IOUS)
        ),
        "MODEL.ROI_HEADS.CASCADE_IOUS is {MODEL.ROI_HEADS.CASCADE_IOUS}, but "
        "CASCADE_BBOX_REG_WEIGHTS is {MODEL.ROI_HEADS.CASCADE_BBOX_REG_WEIGHTS}: give the weights "
        "of each stage",
    ),
    (
        lambda cfg: (
            cfg.MODEL.ROI_HEADS.CASCADE_IOUS
            and cfg.MODEL.ROI_HEADS.CASCADE_IOUS[0] != cfg.MODEL.ROI_HEADS.FG_IOU_THRESHOLD
        ),
        "MODEL.ROI_HEADS.CASCADE_IOUS starts with {MODEL.ROI_HEADS.CASCADE_IOUS[0]}, but "
        "MODEL.ROI_HEADS.FG_IOU_THRESHOLD is {MODEL.ROI_HEADS.FG_IOU_THRESHOLD}: both are the IoU "
        "of the first stage",
    ),
    (
        lambda cfg: cfg.MODEL.ROI_HEADS.CASCADE_IOUS and not cfg.MODEL.CLS_AGNOSTIC_BBOX_REG,
        "MODEL.ROI_HEADS.CASCADE_IOUS needs MODEL.CLS_AGNOSTIC_BBOX_REG True: stages share their "
        "boxes",
    ),
    (_contradicts_schedule_free, "{}"),
    (
        lambda cfg: cfg.SOLVER.PATIENCE and not cfg.SOLVER.BEST_METRIC,
        "SOLVER.PATIENCE is {SOLVER.PATIENCE}, but SOLVER.BEST_METRIC is empty: name a metric, "
        "such as bbox/AP",
    ),
)
