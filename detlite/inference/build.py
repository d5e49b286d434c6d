"""Build the detector of an evaluation or prediction: optimized, augmented and tiled."""

import copy
from collections.abc import Sequence
from typing import Any

from torch import nn
from yacs.config import CfgNode

from detlite.config import ConfigError
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.detector import Detector
from detlite.structures.keypoints import with_sides

from .detectors import ResizingDetector, View
from .optimize import optimize
from .tiling import TiledDetector, Tiling, build_tiling
from .tta import AugmentedDetector, build_views


def build_detector(
    cfg: CfgNode, model: DetectionModel, keypoint_names: Sequence[str] = ()
) -> tuple[Detector, str]:
    """Build the detector of TEST.OPTIMIZE, TEST.BBOX_AUG and TEST.TILE.

    Return it with the dtype for `autocast` around its calls. `model` is in evaluation mode.
    """
    model, dtype = build_inference(cfg, model)
    view = View(cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.MAX_SIZE_TEST)
    views, tiling = build_views(cfg), build_tiling(cfg)
    names = with_sides(keypoint_names, cfg.DATASETS.KEYPOINT_FLIP_PAIRS)
    return wrap_detector(model, view, views, tiling, names), dtype


def build_inference(cfg: CfgNode, model: DetectionModel) -> tuple[DetectionModel, str]:
    """Optimize a model if TEST.OPTIMIZE is set; return it and the dtype for `autocast`."""
    if not cfg.TEST.OPTIMIZE:
        return model, cfg.DTYPE
    return optimize(model, cfg.DTYPE), "float32"


def wrap_detector(
    model: DetectionModel,
    view: View,
    views: Sequence[View] = (),
    tiling: Tiling | None = None,
    keypoint_names: Sequence[str] = (),
) -> Detector:
    """Wrap a model for test-time augmentation, tiling or both, if requested.

    `view` is the size of the network input for tiles without augmentation. See `AugmentedDetector`
    for `views` and `keypoint_names`.
    """
    augmented = AugmentedDetector(model, views, keypoint_names) if views else None
    if tiling is None:
        return augmented or model
    return TiledDetector(augmented or ResizingDetector(model, view), tiling)


def with_score_thresh(model: DetectionModel, score_thresh: float) -> DetectionModel:
    """Lower the score threshold of a model to `score_thresh`, if it is higher.

    Returns `model` itself, or a copy that shares all parameters with it.

    Raises:
        ConfigError: an exported program contains a higher threshold.
    """
    current = model_score_thresh(model)
    if current is None or score_thresh >= current:
        return model
    if not hasattr(model, "backbone"):
        raise ConfigError(
            f"the model was exported with a score threshold of {current:g}, and cannot detect "
            f"objects below it: use at least that instead of {score_thresh:g}, or export the "
            "checkpoint again with a lower MODEL.ROI_HEADS.SCORE_THRESH or RETINANET.INFERENCE_TH"
        )
    # Copy only the modules on the path to the threshold, and share everything else.
    changed: Any = _shallow_copy(model)
    if _threshold_owner(model) is not model:
        changed.roi_heads = _shallow_copy(model.get_submodule("roi_heads"))
        changed.roi_heads.box = _shallow_copy(model.get_submodule("roi_heads.box"))
    _threshold_owner(changed).score_thresh = score_thresh
    return changed


def _shallow_copy(module: nn.Module) -> nn.Module:
    copied = copy.copy(module)
    copied._modules = dict(module._modules)
    return copied


def model_score_thresh(model: DetectionModel) -> float | None:
    """Return the score threshold of a model; None if it has none."""
    return getattr(_threshold_owner(model), "score_thresh", None)


def _threshold_owner(model: DetectionModel) -> Any:
    box_head = getattr(getattr(model, "roi_heads", None), "box", None)
    return model if box_head is None else box_head
