"""Log the settings of a converted model that its weights do not contain."""

import logging
import re
from collections.abc import Sequence
from typing import Any

from yacs.config import CfgNode

from detlite.checkpoint.files import Checkpoint
from detlite.config.loading import flatten
from detlite.conventions import convention_of

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
