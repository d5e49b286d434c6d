"""The config that belongs to a checkpoint: the stored one, with the convention of the weights."""

import logging
import re
from collections.abc import Sequence
from textwrap import shorten
from typing import Any

from yacs.config import CfgNode

from detlite.checkpoint.files import Checkpoint, CheckpointError
from detlite.config import ConfigError, config_from, parse_yaml
from detlite.config.key import convention_fields
from detlite.config.loading import flatten
from detlite.conventions import CONVENTIONS, convention_of

logger = logging.getLogger(__name__)


def config_of(checkpoint: Checkpoint, opts: Sequence[Any] = ()) -> CfgNode:
    """Return the config stored in a checkpoint, with overrides; log what it assumes."""
    stored = checkpoint_config(checkpoint)
    if stored is None:
        names = shorten(", ".join(checkpoint.model), 100, placeholder=" ...")
        problem = f"has no config, so the architecture of its weights ({names}) is unknown"
        if checkpoint.backbone_only:
            problem = "has no config: it is a classifier, from which training can start"
        raise CheckpointError(
            f"{checkpoint.path}: {problem}. If detlite has the model, name the YAML file of its "
            "config as well (`config`, or --config)"
        )
    # Loading weights must not run code, so the caller names the modules to import.
    stored.pop("IMPORTS", None)
    cfg = apply_convention(config_from(stored, checkpoint.path, opts), checkpoint)
    log_assumptions(cfg, checkpoint, opts)
    return cfg


def checkpoint_config(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """Parse the config that is stored in a checkpoint, if any."""
    try:
        config = parse_yaml(checkpoint.config, checkpoint.path)
    except ConfigError as error:
        raise CheckpointError(f"the config in {error}") from error
    return config if isinstance(config, dict) else None


def apply_convention(cfg: CfgNode, checkpoint: Checkpoint) -> CfgNode:
    """Return the config with the convention of the weights.

    Fields in MODEL.CONVENTION_OVERRIDE of the config take precedence over the checkpoint's.

    Raises:
        ConfigError: another convention, or an unknown epsilon of the norm.
        CheckpointError: an unknown convention.
    """
    path, convention = checkpoint.path, checkpoint.convention
    if not convention:
        return cfg
    if convention not in CONVENTIONS:
        raise CheckpointError(
            f"{path}: has the unknown convention {convention!r}; known: {', '.join(CONVENTIONS)}"
        )
    if problem := convention_fields([f for f in checkpoint.override if not f.endswith("=?")]):
        raise CheckpointError(f"{path}: its override must be {problem}")
    if cfg.MODEL.CONVENTION not in ("", convention):
        raise ConfigError(
            f"MODEL.CONVENTION is {cfg.MODEL.CONVENTION}, but the weights in {path} were trained "
            f"with {convention}: remove the key, and set single fields by MODEL.CONVENTION_OVERRIDE"
        )
    assignments = (*checkpoint.override, *cfg.MODEL.CONVENTION_OVERRIDE)
    fields = {assignment.partition("=")[0]: assignment for assignment in assignments}
    if "frozen_norm_eps=?" in fields.values():
        raise ConfigError(
            f"{path}: the epsilon of its frozen batch norm is unknown, because a state dict does "
            "not contain it, and detections depend on it. In torchvision it is 0 if the model was "
            "created with weights=COCO_V1, also if it was trained further, and 1e-5 otherwise. Set "
            "MODEL.CONVENTION_OVERRIDE to ['frozen_norm_eps=0.0'] or ['frozen_norm_eps=1e-05']"
        )
    cfg = cfg.clone()
    cfg.defrost()
    cfg.MODEL.CONVENTION = convention
    cfg.MODEL.CONVENTION_OVERRIDE = tuple(fields.values())
    cfg.freeze()
    return cfg


# Settings that cannot be inferred from the weights.
_NOT_IN_WEIGHTS = re.compile(
    r"INPUT\.(MIN_SIZE_TEST|MAX_SIZE_TEST|TO_BGR255|PIXEL_MEAN|PIXEL_STD)"
    r"|MODEL\.(CONVENTION|RESNETS\.(STRIDE_IN_1X1|BN_EPSILON)|ROI_\w+_HEAD\.POOLER_(TYPE|SAMPLING_RATIO))"
    r"|MODEL\.ROI_HEADS\.(SCORE_THRESH|NMS|BBOX_REG_WEIGHTS|DETECTIONS_PER_IMG)"
    r"|MODEL\.RPN\.(ANCHOR_SIZES|ASPECT_RATIOS|\w+_TOP_N_TEST|NMS_THRESH|MIN_SIZE|SCORE_THRESH)"
    r"|MODEL\.RETINANET\.(ANCHOR_SIZES|SCALES_PER_OCTAVE|ASPECT_RATIOS|BBOX_REG_WEIGHTS"
    r"|INFERENCE_TH|NMS_TH|PRE_NMS_TOP_N)"
)
_PUBLISHED = re.compile(r"-[0-9a-f]{8}\.pth$|model_final_[0-9a-f]{6}\.pkl$")  # with these settings


def unused_sections(cfg: CfgNode) -> tuple[str, ...]:
    """Return the prefixes of keys that do not affect a model, such as "MODEL.RPN."."""
    model = cfg.MODEL
    rcnn, retinanet = (n == model.META_ARCHITECTURE for n in ("GeneralizedRCNN", "RetinaNet"))
    parts = {
        "MODEL.ROI_BOX_HEAD.": rcnn,
        "MODEL.ROI_HEADS.SCORE": rcnn,
        "MODEL.ROI_HEADS.NMS": rcnn,
        "MODEL.ROI_HEADS.BBOX": rcnn,
        "MODEL.CLS_AGNOSTIC": rcnn,
        "MODEL.RPN.": not retinanet,
        "MODEL.ROI_MASK_HEAD.": model.MASK_ON,
        "MODEL.ROI_KEYPOINT_HEAD.": model.KEYPOINT_ON,
        "MODEL.RETINANET.": retinanet,
        "MODEL.RESNETS.STRIDE": model.BACKBONE.CONV_BODY.startswith("R-"),
        "MODEL.RESNETS.BN": model.RESNETS.NORM in ("BN", "SyncBN"),
    }
    return tuple(part for part, used in parts.items() if not used)


def log_assumptions(cfg: CfgNode, checkpoint: Checkpoint, opts: Sequence[Any] = ()) -> None:
    """Log the settings of a converted model that neither its file nor the overrides state."""
    if not checkpoint.source or not checkpoint.config:
        return
    unused, stated = unused_sections(cfg), {*checkpoint.stated, *opts[::2]}
    lines = [
        f"  {key} {value}"
        for key, value in flatten(cfg)
        if _NOT_IN_WEIGHTS.fullmatch(key) and key not in stated and not key.startswith(unused)
    ]
    if cfg.MODEL.RESNETS.NORM == "FrozenBN" and "MODEL.CONVENTION_OVERRIDE" not in opts[::2]:
        eps = convention_of(cfg).frozen_norm_eps
        lines.append(f"  MODEL.CONVENTION_OVERRIDE ['frozen_norm_eps={eps}']")
    if lines:
        level = logging.INFO if _PUBLISHED.search(checkpoint.path.name) else logging.WARNING
        logger.log(
            level,
            "%s: the weights (%s) do not contain these settings, so the defaults of the "
            "framework are assumed. If the model was trained with others, pass them as KEY VALUE:"
            "\n%s",
            checkpoint.path, checkpoint.source, "\n".join(lines),
        )  # fmt: skip
