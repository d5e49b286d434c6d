"""Build the detector of an evaluation or prediction: optimized, augmented and tiled."""

from collections.abc import Sequence

from yacs.config import CfgNode

from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.detector import Detector

from .detectors import ImageDetector, ResizingDetector, View
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
    return wrap_detector(model, view, views, tiling, keypoint_names) or model, dtype


def build_inference(cfg: CfgNode, model: DetectionModel) -> tuple[DetectionModel, str]:
    """Optimize a model if TEST.OPTIMIZE says so; return it and the dtype for `autocast`."""
    if not cfg.TEST.OPTIMIZE:
        return model, cfg.DTYPE
    return optimize(model, cfg.DTYPE), "float32"


def wrap_detector(
    model: DetectionModel,
    view: View,
    views: Sequence[View] = (),
    tiling: Tiling | None = None,
    keypoint_names: Sequence[str] = (),
) -> ImageDetector | None:
    """Wrap a model for test-time augmentation, tiling or both; None if neither is requested.

    Args:
        model: in evaluation mode.
        view: size of the network input for tiles without augmentation.
        views: of test-time augmentation.
        tiling, keypoint_names: see `TiledDetector` and `AugmentedDetector`.
    """
    detector = AugmentedDetector(model, views, keypoint_names) if views else None
    if tiling is None:
        return detector
    return TiledDetector(detector or ResizingDetector(model, view), tiling)
