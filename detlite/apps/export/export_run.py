"""A run of `detlite export`: write the file of a model, and compare the two."""

from argparse import Namespace
from collections.abc import Callable

from detlite.checkpoint.loading import build_model_from_checkpoint
from detlite.config import ConfigError
from detlite.errors import CheckpointError
from detlite.inference.build import model_score_thresh
from detlite.modeling.detection_model import DetectionModel

from . import exported_detector, verify
from .openvino import to_openvino


def export(options: Namespace, step: Callable[[str], None]) -> bool:
    """Export a model with the options of `detlite export`, and print how the file compares.

    `step` is called with the description of each step. Returns True if the file agrees.

    Raises:
        ConfigError: an option is invalid, or its package is not installed.
        CheckpointError, DataError: the weights or images cannot be read, or the file not written.
    """
    is_int8, file = options.int8, options.output
    if is_int8 and options.format != "openvino":
        raise ConfigError("--int8 is only supported by the format openvino: add --format openvino")
    exported_detector.check_output_path(file, options.format)
    step(f"reading {options.weights}")
    overrides = [*options.overrides, "MODEL.DEVICE", "cpu"]
    cfg, model = build_model_from_checkpoint(options.weights, overrides, options.config)
    cfg = exported_detector.prepare_export(cfg, model)
    images = verify.test_images(cfg, model, options.check, options.limit)
    proposals = [verify.grid_of_boxes(x) for x in images] if model.takes_proposals else None
    datasets = verify.evaluation_sets(cfg, options.evaluate) if is_int8 else []
    target: DetectionModel = model
    if options.format == "openvino":
        step("converting the model" + " and calibrating it" * is_int8)
        calibration = verify.calibration_images(cfg, options.calibrate) if is_int8 else ()
        target = to_openvino(model, *calibration)
    step(f"writing {file}; tracing a large model takes minutes")
    exported_detector.write_exported(file, options.format, cfg, target)
    try:
        _, exported = exported_detector.read_exported(file, trust=True)
    except CheckpointError as error:
        raise CheckpointError(
            f"{file} was written, but does not run. If the model has an own part, tracing may have "
            "made one of its sizes constant: compute sizes with convolutions, pooling or "
            f"F.interpolate, not with adaptive pooling to the size of another map. Reason: {error}"
        ) from error
    print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")
    step(f"comparing the file with the model on {len(images)} images")
    # Quantization itself changes the detections; the AP below says by how much.
    reference = target if is_int8 else model
    limits = model_score_thresh(model) or 0.0, model.postprocess.detections_per_image
    difference = verify.compare_detectors(reference, exported, images, proposals, *limits)
    agrees = verify.report_difference(difference)
    for dataset in datasets:
        agrees = verify.report_ap(cfg, model, exported, dataset) and agrees
    return agrees
