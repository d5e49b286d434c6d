"""Log the settings of converted weights that they do not contain."""

import logging
import re
from collections.abc import Sequence
from typing import Any

from yacs.config import CfgNode

from detlite.checkpoint.files import Checkpoint
from detlite.checkpoint.weight_catalog import timm_pixels
from detlite.config.loading import flatten
from detlite.conventions import convention_of
from detlite.modeling.backbone.build import split_name

logger = logging.getLogger(__name__)

# Settings that cannot be inferred from the weights.
_NOT_IN_WEIGHTS = re.compile(
    r"INPUT\.(MIN_SIZE_TEST|MAX_SIZE_TEST|TO_BGR255|PIXEL_MEAN|PIXEL_STD)"
    r"|MODEL\.(CONVENTION|RESNETS\.(STRIDE_IN_1X1|BN_EPSILON)|ROI_\w+_HEAD\.POOLER_(TYPE|SAMPLING_RATIO))"
    r"|MODEL\.ROI_HEADS\.(SCORE_THRESH|NMS|BBOX_REG_WEIGHTS|DETECTIONS_PER_IMG)"
    r"|MODEL\.RPN\.(ANCHOR_SIZES|ASPECT_RATIOS|\w+_TOP_N_TEST|NMS_THRESH|MIN_SIZE|SCORE_THRESH)"
    r"|MODEL\.RETINANET\.(ANCHOR_SIZES|SCALES_PER_OCTAVE|ASPECT_RATIOS|BBOX_REG_WEIGHTS"
    r"|INFERENCE_TH|NMS_TH|PRE_NMS_TOP_N)"
)
_PIXEL_TOLERANCE = 0.01  # of pixels in 0..1; less than what distinguishes CLIP from ImageNet
_PUBLISHED = re.compile(r"-[0-9a-f]{8}\.pth$|model_final_[0-9a-f]{6}\.pkl$")  # with these settings


def _unused_sections(cfg: CfgNode) -> tuple[str, ...]:
    """Return the prefixes of keys that do not affect a model, such as "MODEL.RPN."."""
    model = cfg.MODEL
    rcnn, retinanet = (n == model.META_ARCHITECTURE for n in ("GeneralizedRCNN", "RetinaNet"))
    parts = {
        "MODEL.ROI_BOX_HEAD.": rcnn,
        **dict.fromkeys(("MODEL.ROI_HEADS.SCORE", "MODEL.ROI_HEADS.NMS"), rcnn),
        "MODEL.ROI_HEADS.BBOX": rcnn,
        "MODEL.RPN.": not retinanet,
        "MODEL.ROI_MASK_HEAD.": model.MASK_ON,
        "MODEL.ROI_KEYPOINT_HEAD.": model.KEYPOINT_ON,
        "MODEL.RETINANET.": retinanet,
        "MODEL.RESNETS.STRIDE": model.BACKBONE.CONV_BODY.startswith("R-"),
        "MODEL.RESNETS.BN": model.RESNETS.NORM in ("BN", "SyncBN")
        and not model.BACKBONE.CONV_BODY.startswith("timm/"),
    }
    return tuple(part for part, used in parts.items() if not used)


def log_assumptions(cfg: CfgNode, checkpoint: Checkpoint, opts: Sequence[Any] = ()) -> None:
    """Log the settings of a converted model that neither its file nor the overrides state."""
    if not checkpoint.source or not checkpoint.config:
        return
    unused, stated = _unused_sections(cfg), {*checkpoint.stated, *opts[::2]}
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


def warn_of_other_pixels(cfg: CfgNode, checkpoint: Checkpoint) -> None:
    """Warn if the config normalizes pixels otherwise than a classifier of timm was trained."""
    pixels, name = cfg.INPUT, split_name(cfg.MODEL.BACKBONE.CONV_BODY)[0]
    is_classifier = checkpoint.timm_backbone or checkpoint.backbone_only
    if not (is_classifier and name.startswith("timm/") and len(pixels.PIXEL_MEAN) == 3):
        return  # the values of other channels are not known
    if cfg.MODEL.WEIGHT.startswith("timm://"):  # its tag may have other values than the model
        name = cfg.MODEL.WEIGHT.replace("timm://", "timm/")
    expected = timm_pixels(name.removeprefix("timm/"))
    if expected is None:
        return
    given = zip((*pixels.PIXEL_MEAN, *pixels.PIXEL_STD), (*expected[0], *expected[1]), strict=True)
    if pixels.TO_BGR255 or any(abs(a - b) > _PIXEL_TOLERANCE for a, b in given):
        logger.warning(
            "%s: timm lists other pixel values for these weights than the config has, so AP is "
            "lower: set INPUT.TO_BGR255 False INPUT.PIXEL_MEAN %s INPUT.PIXEL_STD %s",
            checkpoint.path, *expected,
        )  # fmt: skip
