"""Load checkpoints into models, or build the model of a checkpoint."""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from yacs.config import CfgNode

from detlite.config import (
    ConfigError,
    config_from,
    default_config,
    expand_path,
    load_config,
    parse_yaml,
)
from detlite.config.key import convention_fields
from detlite.config.loading import flatten
from detlite.conventions import CONVENTIONS, convention_of
from detlite.conversion.download.weight_catalog import COCO, find_weights, weight_file
from detlite.conversion.timm import TIMM_PREFIX
from detlite.modeling import build_model
from detlite.modeling.backbone.stem import adapted_stems
from detlite.modeling.detection_model import DetectionModel

from .class_transfer import CLASS_LAYERS, ClassTransfer, match_optional_heads
from .files import Checkpoint, CheckpointError, read_checkpoint

logger = logging.getLogger(__name__)

# Entries that classifiers lack: batch counters, and offsets of deformable convolutions.
_NOT_IN_CLASSIFIER = re.compile(r"\.num_batches_tracked$|\.conv2\.offset\.")
# RetinaNet's moving average of the number of foreground anchors, which detectron2 does not save.
_MOVING_AVERAGE = "moving_foreground"
_COUNTER = ".num_batches_tracked"
_STATISTICS = (".running_mean", ".running_var")
_ANCHOR_LAYER = re.compile(r"(rpn\.)?head\.(cls_logits|bbox_pred)\.")
_MAX_ROWS = 40  # of a table in a message


def load_weights(model: DetectionModel, checkpoint: Checkpoint, reinit_heads: bool = False) -> None:
    """Load the weights and categories of a checkpoint into `model`.

    Of a classifier, only the backbone is loaded.

    Args:
        reinit_heads: if the categories differ, keep those of the model. Layers with rows for each
            class take the rows of the background and of categories with the same name; other rows,
            and without names in the file all rows, keep the model's values. A mask or keypoint
            head that only one side has is left out, or keeps its values.

    Raises:
        CheckpointError: entries are missing, unexpected, of another shape or not finite. The
            message lists them, and `model` is unchanged.
        ConfigError: the weights were trained with another convention.
    """
    if checkpoint.convention not in ("", model.convention.name):
        raise ConfigError(
            f"MODEL.CONVENTION is {model.convention.name}, but the weights in {checkpoint.path} "
            f"were trained with {checkpoint.convention}: build the model with that"
        )
    target = model.state_dict()
    source = _select_entries(target, checkpoint)
    source |= adapted_stems(source, target, model.normalizer.bgr255)
    for name, value in source.items():
        if value.is_floating_point() and not value.isfinite().all():
            raise CheckpointError(
                f"{checkpoint.path}: {name} holds NaN or infinity: training diverged, or the file "
                "is damaged; use an earlier checkpoint"
            )
    classes = ClassTransfer(checkpoint.categories, model.categories)
    if reinit_heads:
        source = match_optional_heads(source, target, checkpoint.path)
    if reinit_heads and classes.differ:
        heads = (n for n, m in model.named_modules() if getattr(m, "class_agnostic", False))
        agnostic = {f"{name}.predictor.bbox_pred" for name in heads}
        source |= {
            name: classes.transfer(name, value, target)
            for name, value in source.items()
            if name.rpartition(".")[0] not in agnostic
        }
    differs = [n for n in target if n in source and target[n].shape != source[n].shape]
    by_class = [
        n for n in differs if CLASS_LAYERS.match(n) and target[n].shape[1:] == source[n].shape[1:]
    ]
    fresh = by_class if reinit_heads else []
    problems = [
        *(("missing in the file", name) for name in target.keys() - source),
        *(("unknown to the model", name) for name in source.keys() - target),
        *(("other shape", name) for name in differs if name not in fresh),
    ]
    if problems:
        fitting = len(target.keys() & source) - len(differs)
        message = (
            f"{checkpoint.path} does not fit the model: only {fitting} of {len(target)} entries fit"
        )
        if len(problems) == len(by_class):
            message += (
                ". Only the number of classes differs: set MODEL.REINIT_HEADS True to load the "
                "other layers, and the rows of categories with the same name"
            )
        if all(_ANCHOR_LAYER.match(name) for _, name in problems) and any(
            "bbox_pred" in name for _, name in problems
        ):
            message += (
                ". Only the number of anchors per cell differs: set MODEL.RPN.ANCHOR_SIZES and "
                "ASPECT_RATIOS (for RetinaNet those of MODEL.RETINANET) to the model's own"
            )
        if all(name.endswith(_STATISTICS) for _, name in problems):
            message += (
                ". Only statistics of batch norm are missing on one side: set "
                "MODEL.RESNETS.NORM to the norm of the weights, FrozenBN or BN if they have them"
            )
        raise CheckpointError(f"{message}\n{_table(sorted(problems), source, target)}")
    model.load_state_dict({**source, **{name: target[name] for name in fresh}})
    if classes.differ and not reinit_heads:
        logger.warning(
            "%s was trained on other categories. Their weights are used for the categories of the "
            "model in the same order; set MODEL.REINIT_HEADS True to match them by name",
            checkpoint.path,
        )
    if fresh:
        logger.warning(
            "%s has other classes; newly initialized layers: %s", checkpoint.path, ", ".join(fresh)
        )
    if reinit_heads and classes.differ:
        logger.warning("%s has other categories; %s", checkpoint.path, classes)
    elif checkpoint.categories and not fresh:
        model.categories = checkpoint.categories


def _select_entries(target: Mapping[str, Tensor], checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return the entries of a checkpoint to load into a model with the entries `target`."""
    source, backbone_only = checkpoint.model, checkpoint.backbone_only
    prefix = checkpoint.prefix.partition(".")[2]  # a part of it may belong to the model's names
    if target.keys().isdisjoint(source) and any(prefix + name in target for name in source):
        source = {prefix + name: value for name, value in source.items()}
    if checkpoint.timm_backbone and any(name.startswith(TIMM_PREFIX) for name in target):
        source, backbone_only = checkpoint.timm_backbone, True
    if backbone_only:
        source = _add_heads(source, target)
    if _MOVING_AVERAGE in target:
        source = {_MOVING_AVERAGE: target[_MOVING_AVERAGE], **source}
    # Batch counters are dropped where the norm is frozen, and start at 0 where it was frozen.
    counters = {
        name: value
        for name, value in target.items()
        if name.endswith(_COUNTER) and name.removesuffix(_COUNTER) + ".running_mean" in source
    }
    kept = {n: value for n, value in source.items() if n in target or not n.endswith(_COUNTER)}
    return counters | kept


def _add_heads(backbone: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the entries of a classifier's backbone, completed by those of the model.

    Heads that apply the last stage (C4 models) get it from the backbone, too.
    """
    entries, used = {}, set()
    for name, value in target.items():
        source = re.sub(r"^roi_heads\.\w+\.feature_extractor\.res5\.", "backbone.body.res5.", name)
        source = source.replace(".conv2.conv.", ".conv2.")  # deformable in the model only
        if source in backbone:
            entries[name] = backbone[source]
            used.add(source)
        elif not name.startswith("backbone.body.") or _NOT_IN_CLASSIFIER.search(name):
            entries[name] = value
    # An unused last stage is dropped, and so are timm's classification layers, which have no common
    # name. Other unused entries mean that this is another backbone.
    unused = {name for name in backbone.keys() - used if not name.startswith(TIMM_PREFIX)}
    return entries | {n: backbone[n] for n in unused if not n.startswith("backbone.body.res5.")}


def read_weights(cfg: CfgNode) -> tuple[CfgNode, Checkpoint | None]:
    """Read the checkpoint in MODEL.WEIGHT, if any, and return it with the config for it."""
    if not cfg.MODEL.WEIGHT:
        return cfg, None
    checkpoint = read_checkpoint(weight_file(cfg))
    return apply_convention(cfg, checkpoint), checkpoint


def apply_convention(cfg: CfgNode, checkpoint: Checkpoint) -> CfgNode:
    """Return the config with the convention of the weights.

    Fields in MODEL.CONVENTION_OVERRIDE of the config take precedence over those of the checkpoint.

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
    known = [field for field in checkpoint.override if not field.endswith("=?")]
    if problem := convention_fields(known):
        raise CheckpointError(f"{path}: its override must be {problem}")
    if cfg.MODEL.CONVENTION not in ("", convention):
        raise ConfigError(
            f"MODEL.CONVENTION is {cfg.MODEL.CONVENTION}, but the weights in {path} were trained "
            f"with {convention}: remove the key, and set single fields by MODEL.CONVENTION_OVERRIDE"
        )
    fields = {
        assignment.partition("=")[0]: assignment
        for assignment in (*checkpoint.override, *cfg.MODEL.CONVENTION_OVERRIDE)
    }
    if "frozen_norm_eps=?" in fields.values():
        raise ConfigError(
            f"{path}: the epsilon of its frozen batch norm is unknown, because a state dict does "
            "not hold it, and detections depend on it. In torchvision it is 0 if the model was "
            "created with weights=COCO_V1, also if it was trained further, and 1e-5 otherwise. Set "
            "MODEL.CONVENTION_OVERRIDE to ['frozen_norm_eps=0.0'] or ['frozen_norm_eps=1e-05']"
        )
    cfg = cfg.clone()
    cfg.defrost()
    cfg.MODEL.CONVENTION = convention
    cfg.MODEL.CONVENTION_OVERRIDE = tuple(fields.values())
    cfg.freeze()
    return cfg


# Settings that weights do not show.
_NOT_IN_WEIGHTS = (
    "INPUT.MIN_SIZE_TEST", "INPUT.MAX_SIZE_TEST", "INPUT.TO_BGR255", "INPUT.PIXEL_MEAN",
    "INPUT.PIXEL_STD", "MODEL.CONVENTION", "MODEL.RESNETS.STRIDE_IN_1X1",
    *(f"MODEL.RPN.{key}" for key in (
        "ANCHOR_SIZES", "ASPECT_RATIOS", "PRE_NMS_TOP_N_TEST", "POST_NMS_TOP_N_TEST",
        "FPN_POST_NMS_TOP_N_TEST", "NMS_THRESH", "MIN_SIZE", "SCORE_THRESH",
    )),
    *(f"MODEL.RETINANET.{key}" for key in (
        "ANCHOR_SIZES", "SCALES_PER_OCTAVE", "ASPECT_RATIOS", "BBOX_REG_WEIGHTS", "INFERENCE_TH",
        "NMS_TH", "PRE_NMS_TOP_N",
    )),
    *(f"MODEL.ROI_{head}_HEAD.POOLER_{key}" for head in ("BOX", "MASK", "KEYPOINT")
      for key in ("TYPE", "SAMPLING_RATIO")),
    *(f"MODEL.ROI_HEADS.{key}" for key in ("SCORE_THRESH", "NMS", "BBOX_REG_WEIGHTS")),
    "MODEL.ROI_HEADS.DETECTIONS_PER_IMG",
)  # fmt: skip
_PUBLISHED = re.compile(r"-[0-9a-f]{8}\.pth$|model_final_[0-9a-f]{6}\.pkl$")  # with these settings


def log_assumptions(cfg: CfgNode, checkpoint: Checkpoint, opts: Sequence[Any] = ()) -> None:
    """Log the settings of a converted model that neither its file nor the overrides state."""
    if not checkpoint.source or not checkpoint.config:
        return
    model = cfg.MODEL
    of_heads = ("ROI_BOX_HEAD", "ROI_HEADS.SCORE", "ROI_HEADS.NMS", "ROI_HEADS.BBOX")
    parts = {
        **{f"MODEL.{part}": model.META_ARCHITECTURE == "GeneralizedRCNN" for part in of_heads},
        "MODEL.RPN.": model.META_ARCHITECTURE != "RetinaNet",
        "MODEL.ROI_MASK_HEAD.": model.MASK_ON,
        "MODEL.ROI_KEYPOINT_HEAD.": model.KEYPOINT_ON,
        "MODEL.RETINANET.": model.META_ARCHITECTURE == "RetinaNet",
        "MODEL.RESNETS.": model.BACKBONE.CONV_BODY.startswith("R-"),
    }
    unused = tuple(part for part, used in parts.items() if not used)
    values = dict(flatten(cfg))
    keys = [key for key in _NOT_IN_WEIGHTS if key not in {*checkpoint.stated, *opts[::2]}]
    lines = [f"  {key} {values[key]}" for key in keys if not key.startswith(unused)]
    if model.RESNETS.NORM == "FrozenBN" and "MODEL.CONVENTION_OVERRIDE" not in opts[::2]:
        eps = convention_of(cfg).frozen_norm_eps
        lines.append(f"  MODEL.CONVENTION_OVERRIDE ['frozen_norm_eps={eps}']")
    if lines:
        level = logging.INFO if _PUBLISHED.search(checkpoint.path.name) else logging.WARNING
        logger.log(
            level,
            "%s: the weights (%s) do not contain these settings; assumed are the framework's. If "
            "the model was trained with others, pass them as KEY VALUE:\n%s",
            checkpoint.path, checkpoint.source, "\n".join(lines),
        )  # fmt: skip


def read_model_checkpoint(
    path: str | Path, opts: Sequence[Any] = (), config: str | Path | None = None
) -> tuple[CfgNode, Checkpoint]:
    """Read a checkpoint and the config of its model: the file `config`, or the stored one."""
    checkpoint = read_checkpoint(resolve_checkpoint_path(path, opts))
    if config:
        return apply_convention(load_config(config, opts), checkpoint), checkpoint
    return config_of(checkpoint, opts), checkpoint


def config_of(checkpoint: Checkpoint, opts: Sequence[Any] = ()) -> CfgNode:
    """Return the config stored in a checkpoint, with overrides; log what it assumes."""
    stored = checkpoint_config(checkpoint)
    if stored is None:
        raise CheckpointError(
            f"{checkpoint.path}: has no config, so the architecture of the model is unknown: name "
            "the YAML file of its config as well (`config`, or --config)"
        )
    # Loading weights must not run code, so the caller names the modules to import.
    stored.pop("IMPORTS", None)
    cfg = apply_convention(config_from(stored, checkpoint.path, opts), checkpoint)
    log_assumptions(cfg, checkpoint, opts)
    return cfg


def build_model_from_checkpoint(
    path: str | Path, opts: Sequence[Any] = (), config: str | Path | None = None
) -> tuple[CfgNode, DetectionModel]:
    """Build the model of a checkpoint, in evaluation mode; see `load_checkpoint`."""
    cfg, checkpoint = read_model_checkpoint(path, opts, config)
    model = build_model(cfg)
    load_weights(model, checkpoint)
    return cfg, model.eval()


def resolve_checkpoint_path(path: str | Path, opts: Sequence[Any] = ()) -> Path:
    """Return the file of a checkpoint given by path or name; `opts` may set MODEL.WEIGHT_ROOT."""
    if isinstance(path, Path) or ("://" not in path and path != COCO):
        return expand_path(str(path))
    values = dict(zip(opts[::2], opts[1::2], strict=False))
    return find_weights(path, values.get("MODEL.WEIGHT_ROOT", default_config().MODEL.WEIGHT_ROOT))


def checkpoint_config(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """Parse the config that is stored in a checkpoint, if any."""
    try:
        config = parse_yaml(checkpoint.config, checkpoint.path)
    except ConfigError as error:
        raise CheckpointError(f"the config in {error}") from error
    return config if isinstance(config, dict) else None


def _table(problems: Sequence[tuple[str, str]], *states: Mapping[str, Tensor]) -> str:
    """Format problems with the shapes of their entries, at most `_MAX_ROWS`."""
    rows = [["", "entry", "in the file", "in the model"]]
    for problem, name in problems[:_MAX_ROWS]:
        shapes = [str(list(state[name].shape)) if name in state else "" for state in states]
        rows.append([problem, name, *shapes])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "".join(f"  {cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    if len(problems) > _MAX_ROWS:
        lines.append(f"  ... and {len(problems) - _MAX_ROWS} more")
    return "\n".join(lines)
