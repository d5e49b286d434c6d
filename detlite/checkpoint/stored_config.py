"""The config that belongs to a checkpoint: the stored one, with the convention of the weights.

Settings that converted weights do not contain are logged.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

from yacs.config import CfgNode

from detlite.checkpoint.contents import Checkpoint
from detlite.checkpoint.weight_catalog import timm_pixels
from detlite.config import ConfigError, changed, config_from, parse_yaml
from detlite.config.extensions import COPIES
from detlite.config.key import convention_fields
from detlite.config.loading import flatten
from detlite.conventions import CONVENTIONS, convention_of
from detlite.errors import CheckpointError
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
_IMAGENET = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]  # RGB, of all classifiers of torchvision
_PUBLISHED = re.compile(r"-[0-9a-f]{8}\.pth$|model_final_[0-9a-f]{6}\.pkl$")  # with these settings


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
    with explain_imports(checkpoint.config, checkpoint.path, "IMPORTS" in opts[::2]):
        cfg = apply_convention(config_from(stored, checkpoint.path, opts), checkpoint)
    log_assumptions(cfg, checkpoint, opts)
    return cfg


@contextmanager
def explain_imports(config: str, path: Path, given: bool) -> Iterator[None]:
    """Say in a ConfigError that the IMPORTS in a file with weights are ignored.

    Args:
        config: the config stored in the file `path`.
        given: True if the caller names other IMPORTS, so that they may not be the reason.
    """
    try:
        yield
    except ConfigError as error:
        stored = parse_yaml(config, path)
        imports = stored.get("IMPORTS") if isinstance(stored, dict) else None
        if not imports or given:
            raise
        names = [str(name) for name in (imports if isinstance(imports, list) else [imports])]
        copies = {name: path.parent / COPIES / Path(name).name for name in names}
        files = [str(copy) if copy.is_file() else name for name, copy in copies.items()]
        raise ConfigError(
            f"{error}. IMPORTS of {path} are ignored, because weights must not run code. If you "
            f"trust their code, add the override IMPORTS [{shorten(', '.join(files), 1000)}]"
        ) from error


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
    override = tuple(fields.values())
    return changed(cfg, {"MODEL.CONVENTION": convention, "MODEL.CONVENTION_OVERRIDE": override})


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
    """Warn if the config normalizes pixels otherwise than its classifier was trained.

    The values of classifiers of timm and torchvision are known, if images have three channels.
    """
    pixels, name = cfg.INPUT, split_name(cfg.MODEL.BACKBONE.CONV_BODY)[0]
    if not (checkpoint.timm_backbone or checkpoint.backbone_only) or len(pixels.PIXEL_MEAN) != 3:
        return
    expected = _IMAGENET if checkpoint.source == "torchvision" else None
    if name.startswith("timm/"):
        if cfg.MODEL.WEIGHT.startswith("timm://"):  # its tag may have other values than the model
            name = cfg.MODEL.WEIGHT.replace("timm://", "timm/")
        expected = timm_pixels(name.removeprefix("timm/"))
    if expected is None:
        return
    given = zip((*pixels.PIXEL_MEAN, *pixels.PIXEL_STD), (*expected[0], *expected[1]), strict=True)
    if pixels.TO_BGR255 or any(abs(a - b) > _PIXEL_TOLERANCE for a, b in given):
        logger.warning(
            "%s: the library of these weights lists other pixel values than the config has, so AP "
            "is lower: set INPUT.TO_BGR255 False INPUT.PIXEL_MEAN %s INPUT.PIXEL_STD %s",
            checkpoint.path, *expected,
        )  # fmt: skip
