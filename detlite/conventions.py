"""How a framework counts: the conventions in which detectors of one design differ.

A detector gives the published numbers only where it counts as the framework that trained it.
`MODEL.CONVENTION` names one of CONVENTIONS; weights of another framework bring theirs with them.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor
from yacs.config import CfgNode

from detlite.ops import paste_masks
from detlite.structures.masks.formats import RLE, paste_probabilities, whole_pixel_boxes

# (height, width) in pixels: of one image, or int [B, 2] of a batch.
Sizes = tuple[int, int] | Tensor


@dataclass(frozen=True)
class Convention:
    """One framework's ways. The defaults are detlite's own.

    The methods take boxes float [N, 4] xyxy with the sizes of their image, or [B, N, 4] with sizes
    [B, 2]. They never wait for a device.
    """

    name: str
    # x2 and y2 are the last pixel inside, plus one: regions are pooled, pasted and scaled without
    # that pixel. maskrcnn-benchmark (TO_REMOVE = 1 in structures/bounding_box.py), Detectron.
    inclusive_boxes: bool = False
    # Added to the variance in frozen batch norm; 0 in maskrcnn-benchmark (layers/batch_norm.py) and
    # in torchvision's published detectors (overwrite_eps). Trained batch norm always has 1e-5.
    frozen_norm_eps: float = 1e-5
    # Trained batch norm in frozen stages keeps its statistics (detectron2, CNNBlockBase.freeze);
    # not in torchvision, where only the weights are frozen.
    freeze_batch_statistics: bool = True
    # Centre of an anchor in its cell, as a part of the stride: 0 in torchvision (AnchorGenerator)
    # and detectron2 (MODEL.ANCHOR_GENERATOR.OFFSET).
    anchor_offset: float = 0.5
    # What is rounded to whole pixels: corners around the origin (torchvision, AnchorGenerator), or
    # the sides of an anchor as large as a cell, scaled after (Detectron, generate_anchors.py).
    anchor_rounding: Literal["none", "corners", "cell"] = "none"
    # Pixels between anchors: the stride, or the whole pixels that fit as many times as the map has
    # cells into the padded image (torchvision, AnchorGenerator).
    anchor_spacing: Literal["stride", "fit"] = "stride"
    # Losses of the RPN are divided by the anchors sampled, or by BATCH_SIZE_PER_IMAGE for each
    # image (detectron2, RPN.losses).
    rpn_loss_normalizer: Literal["sampled", "capacity"] = "sampled"
    # Losses of RetinaNet are divided by the foreground anchors of the batch, of each image
    # (torchvision), or by their moving average (detectron2, DenseDetector).
    retinanet_loss_normalizer: Literal["batch", "image", "moving"] = "batch"
    # RetinaNet scores the background too, as label 0 (torchvision).
    retinanet_scores_background: bool = False
    # RetinaNet clips boxes to the image before NMS, or after it (detectron2).
    retinanet_clip: Literal["before-nms", "after-nms"] = "before-nms"
    # RetinaNet drops clipped boxes with a shorter side, in pixels; negative: even empty ones stay
    # (torchvision).
    retinanet_min_size: float = 0.0
    # The convolutions of RetinaNet's towers have a bias below their norm too (detectron2).
    retinanet_normed_bias: bool = False
    # The box head drops boxes with a shorter side, in pixels (torchvision, remove_small_boxes);
    # negative: even empty ones stay (mmdetection, multiclass_nms).
    detection_min_size: float = 0.0
    # Boxes shrink no further than they may grow, 1000 / 16 times (mmdetection, DeltaXYWHBBoxCoder).
    limit_shrinking: bool = False
    # What the stages of a cascade are averaged in: probabilities, or what they are made from
    # (mmdetection, CascadeRoIHead).
    cascade_mean: Literal["probabilities", "logits"] = "probabilities"
    # What masks are trained on: crops of 0 and 1, or averages as they are (torchvision,
    # project_masks_on_boxes).
    mask_targets: Literal["binary", "soft"] = "binary"
    # Where masks are pasted: into the box, or into one truncated to whole pixels (torchvision,
    # paste_mask_in_image; maskrcnn-benchmark, Masker).
    mask_paste: Literal["continuous", "whole-pixels"] = "continuous"
    # Where in the pixel that COCO names a keypoint lies: at its centre, or at its corner
    # (torchvision, maskrcnn-benchmark).
    keypoint_center: float = 0.5
    # Bilinear resizing as Pillow's, to the nearest size (detectron2) or the size below
    # (maskrcnn-benchmark); without antialiasing and rounding to 8 bits (torchvision); or without
    # antialiasing, in OpenCV's whole numbers, to the nearest size (mmdetection, mmcv.imrescale).
    resize: Literal["round", "floor", "interpolate", "opencv"] = "round"
    # Pictures are turned as their EXIF orientation says (detectron2, read_image; mmdetection), or
    # taken as stored (torchvision's CocoDetection, and maskrcnn-benchmark with it).
    exif_orientation: bool = True

    def clip(self, boxes: Tensor, sizes: Sizes) -> Tensor:
        """Boxes [..., N, 4] cut to their images.

        Where boxes are inclusive, one beyond the border keeps the pixel at the border instead of
        becoming empty.
        """
        last_pixel = int(self.inclusive_boxes)
        limits = _width_height(boxes, sizes)
        low = torch.minimum(boxes[..., :2].clamp(min=0), limits - last_pixel)
        high = torch.minimum(boxes[..., 2:].clamp(min=last_pixel), limits)
        return torch.cat([low, high], dim=-1)

    def inside(self, boxes: Tensor, sizes: Sizes, margin: float) -> Tensor:
        """Bool [..., N]: boxes [..., N, 4] that stay within `margin` pixels of their images.

        Where boxes are inclusive, it is enough that the last pixel begins there.
        """
        limits = _width_height(boxes, sizes) + margin
        high = boxes[..., 2:]
        within = high - 1 < limits if self.inclusive_boxes else high <= limits
        return ((boxes[..., :2] >= -margin) & within).all(dim=-1)

    def pooled(self, boxes: Tensor) -> Tensor:
        """What of boxes [..., 4] is pooled and pasted, and what masks and heat maps cover."""
        if not self.inclusive_boxes:
            return boxes
        low, high = boxes[..., :2], boxes[..., 2:]
        return torch.cat([low, torch.maximum(high - 1, low)], dim=-1)  # never reversed

    def rescale_boxes(
        self, boxes: Tensor, from_size: Sizes, to_size: Sizes, clip: bool = True
    ) -> Tensor:
        """Boxes [..., N, 4] of an image in the same image of another size.

        The two sides are scaled apart: a resize rounds each to a pixel. Unless boxes are inclusive,
        they are also clipped, since rounding may bring them across the border.
        """
        factors = _width_height(boxes, to_size) / _width_height(boxes, from_size)
        low, high = boxes[..., :2], boxes[..., 2:]
        if self.inclusive_boxes:
            # The last pixel keeps its size: at the border it may reach beyond a smaller picture.
            return torch.cat([low * factors, (high - 1) * factors + 1], dim=-1)
        scaled = torch.cat([low * factors, high * factors], dim=-1)
        return self.clip(scaled, to_size) if clip else scaled

    def rescale_keypoints(self, keypoints: Tensor, from_size: Sizes, to_size: Sizes) -> Tensor:
        """Keypoints [..., N, P, 3] of an image in the same image of another size."""
        factors = _width_height(keypoints, to_size) / _width_height(keypoints, from_size)
        if factors.dim() > 1:  # of a batch: one more dimension than boxes have
            factors = factors.unsqueeze(-2)
        return torch.cat([keypoints[..., :2] * factors, keypoints[..., 2:]], dim=-1)

    def paste_rle(
        self, probs: Tensor, boxes: Tensor, size: tuple[int, int], threshold: float
    ) -> list[RLE]:
        """Masks of probabilities [N, M, M] in a picture, in its boxes [N, 4], as COCO's RLEs."""
        return paste_masks(probs, self._filled(boxes, probs.shape[-1]), size, threshold)

    def paste_probs(self, probs: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """The same as probabilities float32 [N, height, width]."""
        return paste_probabilities(probs, self._filled(boxes, probs.shape[-1]), size)

    def _filled(self, boxes: Tensor, cells: int) -> Tensor:
        """What masks of cells x cells fill of pictures, in boxes [N, 4]."""
        boxes = self.pooled(boxes)
        return whole_pixel_boxes(boxes, cells) if self.mask_paste == "whole-pixels" else boxes

    def overridden(self, assignments: Sequence[str]) -> Convention:
        """This convention with fields replaced, by ("resize=floor", "anchor_offset=0.5").

        Raises:
            ValueError: an assignment to no field, or of a value that the field cannot have.
        """
        return replace(self, **dict(_parse(assignment) for assignment in assignments))


def _width_height(like: Tensor, sizes: Sizes) -> Tensor:
    """(width, height) that broadcasts over the corners [..., N, 2] of boxes."""
    if isinstance(sizes, Tensor):
        return sizes.flip(-1).unsqueeze(-2).to(like.dtype)
    height, width = sizes
    # Filled on the device: a tensor made from a list would be copied there, and waited for.
    return torch.stack([like.new_full((), width), like.new_full((), height)])


def _parse(assignment: str) -> tuple[str, Any]:
    """The field that "field=value" names, and its value."""
    name, _, text = assignment.partition("=")
    known = [field.name for field in fields(Convention) if field.name != "name"]
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
        raise ValueError(f"a convention has no field {name!r}; {hint}")
    kind = get_type_hints(Convention)[name]
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise ValueError(f"{name} is {text!r}, but must be one of {', '.join(get_args(kind))}")
        return name, text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = text
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise ValueError(f"{name} is {text!r}, but must be {kind.__name__}, as in resize=floor")
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
    """The convention of a config: MODEL.CONVENTION ("": detlite) with MODEL.CONVENTION_OVERRIDE."""
    convention = CONVENTIONS[cfg.MODEL.CONVENTION or "detlite"]
    return convention.overridden(cfg.MODEL.CONVENTION_OVERRIDE)
