"""Build the detector of an evaluation or prediction: optimized, augmented and tiled."""

from collections.abc import Sequence
from typing import Any

from detlite.config import ConfigError
from detlite.modeling.compilation import compile_parts
from detlite.modeling.detection_model import DetectionModel, shallow_copy
from detlite.modeling.detector import Detector

from .image_detector import ResizingDetector
from .optimize import PARTS, optimize
from .options import InferenceOptions
from .tiling import TiledDetector
from .tta import AugmentedDetector


def build_detector(
    model: DetectionModel,
    options: InferenceOptions,
    keypoint_names: Sequence[str] = (),
    is_compiled: bool = False,
) -> tuple[Detector, str]:
    """Build the detector that options describe, and return it with the dtype for `autocast`.

    It may be the model itself, which is in evaluation mode, or a copy with another precision, score
    threshold or compiled parts, perhaps with test-time augmentation, tiles or both around it.

    Args:
        model: the model, not changed.
        options: see `InferenceOptions`.
        keypoint_names: see `AugmentedDetector`.
        is_compiled: compile the parts of the model, as MODEL.COMPILE does.
    """
    detecting, dtype, is_optimized = model, options.dtype, options.optimize
    if is_optimized:
        detecting, dtype = optimize(model, options.dtype), "float32"
    # oneDNN has already fused the operations of optimized models on CPUs.
    if is_compiled and not (is_optimized and model.device.type == "cpu"):
        detecting = compile_parts(detecting, PARTS)
    if options.score_thresh is not None:
        detecting = _with_score_thresh(detecting, options.score_thresh)
    views = options.views
    augmented = AugmentedDetector(detecting, views, keypoint_names) if views else None
    if not options.tile:
        return augmented or detecting, dtype
    detector = augmented or ResizingDetector(detecting, options.view)
    return TiledDetector(detector, options.tile, options.tile_batch), dtype


def _with_score_thresh(model: DetectionModel, score_thresh: float) -> DetectionModel:
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
            "checkpoint again with a lower MODEL.ROI_HEADS.SCORE_THRESH (of a RetinaNet, "
            "MODEL.RETINANET.INFERENCE_TH)"
        )
    # Copy only the modules on the path to the threshold, and share everything else.
    changed: Any = shallow_copy(model)
    if _threshold_owner(model) is not model:
        changed.roi_heads = shallow_copy(model.get_submodule("roi_heads"))
        changed.roi_heads.box = shallow_copy(model.get_submodule("roi_heads.box"))
    _threshold_owner(changed).score_thresh = score_thresh
    return changed


def model_score_thresh(model: DetectionModel) -> float | None:
    """Return the score threshold of a model; None if it has none."""
    return getattr(_threshold_owner(model), "score_thresh", None)


def _threshold_owner(model: DetectionModel) -> Any:
    box_head = getattr(getattr(model, "roi_heads", None), "box", None)
    return model if box_head is None else box_head
