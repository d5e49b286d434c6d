"""The numeric conventions in which frameworks with the same architecture differ.

A model reproduces its published results only with the conventions of the framework that trained
it. `MODEL.CONVENTION` names an entry of CONVENTIONS; converted weights store theirs. This module
contains only the values: the code that depends on a field reads it.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints

if TYPE_CHECKING:
    from yacs.config import CfgNode


@dataclass(frozen=True)
class Convention:
    """The conventions of one framework. The defaults are detlite's own."""

    name: str
    # x2 and y2 are the last pixel inside, plus one: RoIs are pooled, pasted and scaled without
    # that pixel. maskrcnn-benchmark (TO_REMOVE = 1 in structures/bounding_box.py), Detectron.
    inclusive_boxes: bool = False
    # Added to the variance in frozen batch norm; 0 in maskrcnn-benchmark (layers/batch_norm.py) and
    # in torchvision's published detectors (overwrite_eps). Trained batch norm always has 1e-5.
    frozen_norm_eps: float = 1e-5
    # Trained batch norm in frozen stages keeps its statistics (detectron2, CNNBlockBase.freeze);
    # in torchvision only the weights are frozen.
    freeze_batch_statistics: bool = True
    # Center of an anchor in its cell, as a fraction of the stride: 0 in torchvision
    # (AnchorGenerator) and detectron2 (MODEL.ANCHOR_GENERATOR.OFFSET).
    anchor_offset: float = 0.5
    # What is rounded to whole pixels: the corners around the origin (torchvision, AnchorGenerator),
    # or the sides of an anchor of one cell before scaling (Detectron, generate_anchors.py).
    anchor_rounding: Literal["none", "corners", "cell"] = "none"
    # Pixels between anchors: the stride, or the padded image size divided by the number of cells,
    # rounded down (torchvision, AnchorGenerator).
    anchor_spacing: Literal["stride", "fit"] = "stride"
    # RPN losses are divided by the number of sampled anchors, or by BATCH_SIZE_PER_IMAGE times the
    # number of images (detectron2, RPN.losses).
    rpn_loss_normalizer: Literal["sampled", "capacity"] = "sampled"
    # RetinaNet losses are divided by the number of foreground anchors in the batch, in each image
    # (torchvision), or by its moving average (detectron2, DenseDetector).
    retinanet_loss_normalizer: Literal["batch", "image", "moving"] = "batch"
    # RetinaNet also scores the background, as label 0 (torchvision).
    retinanet_scores_background: bool = False
    # RetinaNet clips boxes to the image before NMS, or after it (detectron2).
    retinanet_clip: Literal["before-nms", "after-nms"] = "before-nms"
    # RetinaNet drops clipped boxes with a side below this number of pixels; negative: keep even
    # empty boxes (torchvision).
    retinanet_min_size: float = 0.0
    # Convolutions in RetinaNet's towers have a bias in addition to their norm (detectron2).
    retinanet_normed_bias: bool = False
    # The box head drops boxes with a side below this number of pixels (torchvision,
    # remove_small_boxes); negative: keep even empty boxes (mmdetection, multiclass_nms).
    detection_min_size: float = 0.0
    # Boxes shrink by at most the factor that they may grow by, 1000 / 16 (mmdetection,
    # DeltaXYWHBBoxCoder).
    limit_shrinking: bool = False
    # The stages of a cascade, and the passes of a box head, are averaged as probabilities, or as
    # logits (mmdetection, CascadeRoIHead).
    cascade_mean: Literal["probabilities", "logits"] = "probabilities"
    # Mask targets are crops of 0 and 1, or averages (torchvision, project_masks_on_boxes).
    mask_targets: Literal["binary", "soft"] = "binary"
    # Masks are pasted into the box, or into a box truncated to whole pixels (torchvision,
    # paste_mask_in_image; maskrcnn-benchmark, Masker).
    mask_paste: Literal["continuous", "whole-pixels"] = "continuous"
    # Position of a keypoint in the pixel that COCO names: the center, or the corner (torchvision,
    # maskrcnn-benchmark).
    keypoint_center: float = 0.5
    # Bilinear resizing like Pillow, to the nearest size (detectron2) or the next smaller size
    # (maskrcnn-benchmark); without antialiasing and rounding to 8 bits (torchvision); or without
    # antialiasing in OpenCV's integers, to the nearest size (mmdetection, mmcv.imrescale).
    resize: Literal["round", "floor", "interpolate", "opencv"] = "round"
    # Images are rotated by their EXIF orientation (detectron2, read_image; mmdetection), or used as
    # stored (torchvision's CocoDetection, and with it maskrcnn-benchmark).
    exif_orientation: bool = True

    def override(self, assignments: Sequence[str]) -> Convention:
        """Return this convention with other values, such as ("resize=floor", "anchor_offset=0").

        Raises:
            ValueError: an unknown field, or a value that the field does not accept.
        """
        return replace(self, **dict(_parse(assignment) for assignment in assignments))


def _parse(assignment: str) -> tuple[str, Any]:
    """Return the field and the value of "field=value"."""
    name, _, text = assignment.partition("=")
    known = [field.name for field in fields(Convention) if field.name != "name"]
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
        raise ValueError(f"a convention has no field {name!r}; {hint}")
    field_type = get_type_hints(Convention)[name]
    choices = get_args(field_type)  # of a Literal
    value: Any = text
    with contextlib.suppress(ValueError, SyntaxError):
        value = ast.literal_eval(text)
    if field_type is float and type(value) is int:
        value = float(value)
    if not (value in choices if choices else type(value) is field_type):
        expected = f"one of {', '.join(choices)}" if choices else field_type.__name__
        raise ValueError(f"{name} is {text!r}, but must be {expected}, as in resize=floor")
    return name, value


CONVENTIONS: dict[str, Convention] = {
    convention.name: convention
    for convention in (
        Convention("detlite"),
        Convention(
            "torchvision",
            frozen_norm_eps=0.0,
            freeze_batch_statistics=False,
            anchor_offset=0.0,
            anchor_rounding="corners",
            anchor_spacing="fit",
            retinanet_loss_normalizer="image",
            retinanet_scores_background=True,
            retinanet_min_size=-1.0,
            detection_min_size=1e-2,
            mask_targets="soft",
            mask_paste="whole-pixels",
            keypoint_center=0.0,
            resize="interpolate",
            exif_orientation=False,
        ),
        Convention(
            "detectron2",
            anchor_offset=0.0,
            rpn_loss_normalizer="capacity",
            retinanet_loss_normalizer="moving",
            retinanet_clip="after-nms",
            retinanet_normed_bias=True,
        ),
        Convention(
            "maskrcnn-benchmark",
            inclusive_boxes=True,
            frozen_norm_eps=0.0,
            anchor_rounding="cell",
            mask_paste="whole-pixels",
            keypoint_center=0.0,
            resize="floor",
            exif_orientation=False,
        ),
        Convention(
            "mmdetection",
            anchor_offset=0.0,
            detection_min_size=-1.0,
            limit_shrinking=True,
            cascade_mean="logits",
            resize="opencv",
        ),
    )
}


def convention_of(cfg: CfgNode) -> Convention:
    """Return the convention of a config: MODEL.CONVENTION (default: detlite) with
    MODEL.CONVENTION_OVERRIDE."""
    return CONVENTIONS[cfg.MODEL.CONVENTION or "detlite"].override(cfg.MODEL.CONVENTION_OVERRIDE)
