"""A run of `detlite export`: write the file of a model, and compare their detections and AP."""

from __future__ import annotations

import math
import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from yacs.config import CfgNode

from detlite.checkpoint.loading import build_model_from_checkpoint
from detlite.config import ConfigError, changed
from detlite.data import CocoDataset, build_dataset
from detlite.data.datasets.synthetic import draw_scene
from detlite.data.images.listing import list_images
from detlite.data.images.pixels import build_image_options
from detlite.data.images.reading import read_image
from detlite.data.transforms.detection_transform import build_transform
from detlite.data.transforms.resize import resize_shortest
from detlite.engine.evaluate import evaluate_dataset
from detlite.errors import CheckpointError
from detlite.inference.build import model_score_thresh
from detlite.modeling.detection_model import DetectionModel
from detlite.structures.instances import Detections

from . import exported_detector
from .openvino import to_openvino

# Largest differences that rounding can cause: box coordinates in pixels, scores and mask
# probabilities.
TOLERANCE = {"boxes": 0.05, "scores": 1e-3, "masks": 1e-2}
# Field of `Difference` -> field of `Detections`.
_COMPARED = {"boxes": "boxes", "scores": "scores", "masks": "mask_probs", "keypoints": "keypoints"}
_MATCH_DISTANCE = 1.0  # maximum difference of matched boxes in pixels
_MARGIN = 0.01  # distance of a score from the threshold below which rounding decides
_MAX_AP_LOSS = 0.005  # AP from 0 to 1
_GENERATED_IMAGES = 4
_OTHER_SIZES = (0.75, 1.25)  # factors of the short side of the network input


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
    images = test_images(cfg, model, options.check, options.limit)
    proposals = [grid_of_boxes(x) for x in images] if model.takes_proposals else None
    datasets = evaluation_sets(cfg, options.evaluate) if is_int8 else []
    target: DetectionModel = model
    if options.format == "openvino":
        step("converting the model" + " and calibrating it" * is_int8)
        calibration = calibration_images(cfg, options.calibrate) if is_int8 else ()
        target = to_openvino(model, *calibration)
    step(f"writing {file}; tracing a large model takes minutes")
    exported_detector.write_exported(file, options.format, cfg, target)
    try:
        imports = ("IMPORTS", cfg.IMPORTS)  # the file needs the extensions of the model, too
        _, exported = exported_detector.read_exported(file, imports, trust=True)
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
    difference = compare_detectors(reference, exported, images, proposals, *limits)
    agrees = report_difference(difference)
    for dataset in datasets:
        agrees = report_ap(cfg, model, exported, dataset) and agrees
    return agrees


@dataclass(frozen=True)
class Difference:
    """Largest differences between matched detections.

    Attributes:
        objects: number of matched detections.
        unmatched: number of detections of only one detector.
        borderline: number of further unmatched detections, with a score close to the lowest score
            that the other detector reports.
        boxes, keypoints: in pixels of the network input.
        scores, masks: differences of probabilities; `scores` includes differences of extra fields,
            relative to their maximum if it is above 1.
    """

    objects: int = 0
    unmatched: int = 0
    borderline: int = 0
    boxes: float = 0.0
    scores: float = 0.0
    masks: float = 0.0
    keypoints: float = 0.0

    def __or__(self, other: Difference) -> Difference:
        """Combine two differences."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Difference(*(a + b if isinstance(a, int) else max(a, b) for a, b in pairs))

    def within(self, boxes: float, scores: float, masks: float) -> bool:
        """Return True if all detections match within limits; `boxes` also limits keypoints."""
        pixels = max(self.boxes, self.keypoints)
        return not self.unmatched and (
            pixels <= boxes and self.scores <= scores and self.masks <= masks
        )


def compare_detectors(
    left: DetectionModel,
    right: DetectionModel,
    images: Sequence[Tensor],
    proposals: Sequence[Tensor] | None = None,
    threshold: float = 0.0,
    max_objects: int | None = None,
) -> Difference:
    """Compare two detectors on network inputs [C, H, W], one by one.

    Args:
        proposals: proposals of each image, for Fast R-CNN.
        threshold: score threshold of both detectors.
        max_objects: maximum number of detections per image of both detectors.
    """
    difference = Difference()
    for index, image in enumerate(images):
        inputs = [image], None if proposals is None else [proposals[index]]
        [first], [second] = left.detect(*inputs), right.detect(*inputs)
        difference |= compare(first, second, threshold, max_objects)
    return difference


def compare(
    left: Detections, right: Detections, threshold: float = 0.0, max_objects: int | None = None
) -> Difference:
    """Compare two sets of detections [D] of an image, see `compare_detectors`.

    Each box is matched to the nearest unmatched box of its label, because the order of equal scores
    may differ.
    """
    partners = torch.full((len(left.boxes),), -1)
    free = torch.ones(len(right.boxes), dtype=torch.bool)
    for index, (box, label) in enumerate(zip(left.boxes, left.labels, strict=True)):
        distance = (right.boxes - box).abs().amax(dim=1)
        distance = torch.where(free & (right.labels == label), distance, torch.inf)
        if (distance < _MATCH_DISTANCE).any():
            partners[index] = distance.argmin()
            free[partners[index]] = False
    borderline = unmatched = 0
    for scores, other, alone in ((left.scores, right, partners < 0), (right.scores, left, free)):
        full = max_objects is not None and len(other.boxes) >= max_objects
        lowest = max(threshold, float(other.scores.min()) if full else 0.0)
        is_borderline = scores[alone] < lowest + _MARGIN
        borderline += int(is_borderline.sum())
        unmatched += int((~is_borderline).sum())
    left, right = left[partners >= 0], right[partners[partners >= 0]]
    largest = {
        kind: _max_difference(getattr(left, name), getattr(right, name))
        for kind, name in _COMPARED.items()
    }
    for name, values in left.extra_fields.items() if len(left.boxes) else ():
        scale = float(values.abs().max().clamp(min=1))
        relative = _max_difference(values, right.extra_fields[name]) / scale
        largest["scores"] = max(largest["scores"], relative)
    return Difference(len(left.boxes), unmatched, borderline, **largest)


def _max_difference(left: Tensor | None, right: Tensor | None) -> float:
    if left is None or right is None or not left.numel():
        return 0.0
    return float((left - right).abs().max())


def test_images(
    cfg: CfgNode, model: DetectionModel, folder: Path | None, limit: int
) -> list[Tensor]:
    """Return network inputs: the test images, the first one in other sizes, and a blank one.

    At most `limit` images of the folder are used, spread evenly over it.
    """
    if folder is None:
        scenes = (draw_scene(np.random.default_rng(seed))[0] for seed in range(_GENERATED_IMAGES))
        channels = torch.arange(model.channels) % 3
        images = [torch.from_numpy(pixels).permute(2, 0, 1)[channels] for pixels in scenes]
    else:
        options = build_image_options(cfg)
        files = list_images(folder)
        files = files[:: math.ceil(len(files) / limit)]
        images = [read_image(file, options=options) for file in files]
    size, max_size = cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.MAX_SIZE_TEST
    shown = [(image, size) for image in [*images, torch.full_like(images[0], 128)]]
    shown += [(images[0], round(factor * size)) for factor in _OTHER_SIZES]
    smallest = model.backbone.min_image_side  # programs pad to this size, which changes detections
    resized = []
    for image, side in shown:
        longest = math.ceil(smallest * max(image.shape[1:]) / min(image.shape[1:]))
        limits = max(side, smallest), max(max_size, longest)
        resized.append(resize_shortest(image, *limits, model.convention.resize))
    return resized


def grid_of_boxes(image: Tensor) -> Tensor:
    """Return nine proposals [9, 4] spread over an image [3, H, W], for Fast R-CNN."""
    height, width = image.shape[-2:]
    x, y = torch.meshgrid(torch.arange(3) * width / 4, torch.arange(3) * height / 4, indexing="xy")
    low = torch.stack([x, y], dim=-1).reshape(-1, 2)
    return torch.cat([low, low + torch.tensor([width / 2, height / 2])], dim=1)


def calibration_images(cfg: CfgNode, count: int) -> tuple[list[Tensor], list[Tensor] | None]:
    """Return `count` images spread evenly over the first training set, and their proposals."""
    if not cfg.DATASETS.TRAIN:
        raise ConfigError(
            "--int8 is calibrated on DATASETS.TRAIN, which is empty: add DATASETS.TRAIN '(NAME,)'"
        )
    dataset = build_dataset(cfg, cfg.DATASETS.TRAIN[0], train=False)
    transform = build_transform(cfg, train=False)
    count = min(count, len(dataset))
    chosen = [transform(*dataset[k * len(dataset) // count]) for k in range(count)]
    images = [image for image, _ in chosen]
    proposals = [target["proposals"] for _, target in chosen if "proposals" in target]
    return images, proposals or None


def report_difference(difference: Difference) -> bool:
    """Print a difference; return True if rounding can be its cause."""
    agrees = difference.within(**TOLERANCE)
    limits = ", ".join(f"{name} {value}" for name, value in TOLERANCE.items())
    unmatched = f"{difference.unmatched} objects without a match"
    if difference.borderline:
        unmatched += f", and {difference.borderline} with scores for which rounding decides"
    print(
        f"compared {difference.objects} pairs of objects: boxes differ by at most "
        f"{difference.boxes:.2g} pixels, scores by {difference.scores:.2g}, mask probabilities by "
        f"{difference.masks:.2g}, keypoints by {difference.keypoints:.2g} pixels; {unmatched}\n"
        f"the file {'agrees' if agrees else 'DOES NOT AGREE'} with the model (tolerance: {limits})"
    )
    return agrees


def evaluation_sets(cfg: CfgNode, name: str | None) -> list[CocoDataset]:
    """Return the datasets on which the AP of the int8 model is measured."""
    names = [name] if name else cfg.DATASETS.TEST
    if not names:
        raise ConfigError("--int8 measures AP, but DATASETS.TEST is empty: add --evaluate NAME")
    return [build_dataset(cfg, test_set, train=False) for test_set in names]


def report_ap(
    cfg: CfgNode, model: DetectionModel, exported: DetectionModel, dataset: CocoDataset
) -> bool:
    """Print the AP of both detectors on a dataset; return True if it drops by at most 0.5."""
    # These would change both detectors.
    cfg = changed(cfg, {"TEST.OPTIMIZE": False, "MODEL.COMPILE": False})
    with tempfile.TemporaryDirectory() as folder:
        before, after = (
            evaluate_dataset(cfg, detector, dataset, Path(folder)) for detector in (model, exported)
        )
    is_close = True
    for kind in before:
        old, new = before[kind]["AP"], after[kind]["AP"]
        print(f"{dataset.name}: {kind} AP {100 * old:.1f} before, {100 * new:.1f} in int8")
        is_close &= old - new <= _MAX_AP_LOSS
    return is_close
