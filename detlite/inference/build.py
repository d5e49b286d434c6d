"""Build the detector of an evaluation or prediction: optimized, augmented and tiled."""

from collections.abc import Sequence

from yacs.config import CfgNode

from detlite.modeling.compilation import compile_parts
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.detector import Detector
from detlite.structures.keypoints import with_sides

from .image_detector import ResizingDetector
from .optimize import PARTS, optimize
from .options import InferenceOptions, build_options
from .tiling import TiledDetector
from .tta import AugmentedDetector


def build_detector(
    cfg: CfgNode, model: DetectionModel, keypoint_names: Sequence[str] = ()
) -> tuple[Detector, str]:
    """Build the detector of TEST.OPTIMIZE, MODEL.COMPILE, TEST.BBOX_AUG and TEST.TILE.

    Return it with the dtype for `autocast` around its calls. `model` is in evaluation mode.
    """
    options = build_options(cfg)
    if not options.optimize:
        model.use_memory_format()
    model, dtype = optimize_model(model, options)
    # oneDNN has already fused the operations of optimized models on CPUs.
    if cfg.MODEL.COMPILE and not (options.optimize and model.device.type == "cpu"):
        model = compile_parts(model, PARTS)
    names = with_sides(keypoint_names, cfg.DATASETS.KEYPOINT_FLIP_PAIRS)
    return wrap_detector(model, options, names), dtype


def optimize_model(model: DetectionModel, options: InferenceOptions) -> tuple[DetectionModel, str]:
    """Return the model that detects, maybe an optimized copy, and the dtype for `autocast`."""
    if options.optimize:
        return optimize(model, options.dtype), "float32"
    return model, options.dtype


def wrap_detector(
    model: DetectionModel, options: InferenceOptions, keypoint_names: Sequence[str] = ()
) -> Detector:
    """Wrap a model for test-time augmentation, tiling or both, if requested.

    See `AugmentedDetector` for `keypoint_names`.
    """
    augmented = AugmentedDetector(model, options.views, keypoint_names) if options.views else None
    if not options.tile:
        return augmented or model
    detector = augmented or ResizingDetector(model, options.view)
    return TiledDetector(detector, options.tile, options.tile_batch)
