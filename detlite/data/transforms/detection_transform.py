"""Transform an image together with its boxes, masks and keypoints.

Letters in shapes: N objects, P keypoints of an object, R proposals.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from yacs.config import CfgNode

from detlite.conventions import CONVENTIONS, Convention, convention_of
from detlite.data.datasets.coco import Target
from detlite.structures import boxes as box_ops
from detlite.structures.keypoints import PIXEL_CENTER, flip_order, with_sides
from detlite.structures.object_fields import resizing

from .resize import RandomShortestSize, Size, resize_image
from .rotate import RandomRotation
from .targets import BOX_FIELDS, Color, TargetTransform, move_own_fields, select_objects


@dataclass(frozen=True)
class DetectionTransform:
    """Flips, resizes, changes color and rotates, and drops boxes smaller than a pixel.

    Random numbers come from torch's global generator, so a seed determines the result. Without a
    `resize`, images keep their size.

    Attributes:
        flip: probabilities of flipping left and right, and top and bottom.
        keypoint_names: "left_..." and "right_..." are swapped in a mirrored image.
        convention: sets how images and boxes are resized, and the position of keypoints in their
            pixel; keypoints of the dataset are at its center.
    """

    resize: RandomShortestSize | None = None
    flip: tuple[float, float] = (0.0, 0.0)
    color: Callable[[Tensor], Tensor] | None = None
    rotation: TargetTransform | None = None
    keypoint_names: Sequence[str] = ()
    convention: Convention = CONVENTIONS["detlite"]

    def __call__(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        """Transform an image uint8 [C, H, W] and its target.

        Coordinates of the target refer to its `size` (height, width); the image may be smaller, see
        `largest_size`. The target has `boxes` [N, 4] xyxy, `labels` [N], and optionally `masks`
        (`PackedMasks`), `keypoints` [N, P, 3], own fields (`OBJECT_FIELDS`), and `proposals` and
        `ignored_boxes` [R, 4] xyxy. Other entries are not changed.
        """
        stored = image.shape[-2], image.shape[-1]
        size = target.get("size", stored)
        flip_x, flip_y = (p > 0 and float(torch.rand(1)) < p for p in self.flip)
        flips = flip_x, flip_y
        if any(flips):
            image = image.flip([-1] * flips[0] + [-2] * flips[1])
        new_size = self.resize(size) if self.resize is not None else size
        shrinks = new_size[0] * new_size[1] < stored[0] * stored[1]
        if self.color is not None and not shrinks:  # at the smaller size
            image = self.color(image)
        if self.resize is not None or stored != size:
            image = resize_image(image, new_size, self.convention.resize)
        if self.color is not None and shrinks:
            image = self.color(image)
        target = dict(move_own_fields(target, resizing(size, new_size, *flips)))
        for name in target.keys() & BOX_FIELDS:
            boxes = _flip_boxes(target[name], size, *flips)
            boxes = box_ops.rescale(boxes, size, new_size, self.convention, clipped=False)
            target[name] = box_ops.clip(boxes, new_size)
        if "masks" in target:
            target["masks"] = target["masks"].transformed(*flips, size, new_size)
        if "keypoints" in target:
            target["keypoints"] = self._move_keypoints(target["keypoints"], *flips, size, new_size)
        target = select_objects(target, box_ops.has_min_size(target["boxes"], 1))
        return self.rotation(image, target) if self.rotation else (image, target)

    def largest_size(self, size: Size) -> Size:
        """Return the largest size to which an image of this size is resized."""
        return self.resize.largest(size) if self.resize is not None else size

    def _move_keypoints(
        self, keypoints: Tensor, flip_x: bool, flip_y: bool, size: Size, new_size: Size
    ) -> Tensor:
        """Return the keypoints [N, P, 3] of an image that was flipped and resized."""
        center, (height, width) = self.convention.keypoint_center, new_size
        x = (keypoints[..., 0] + center - PIXEL_CENTER) * (width / size[1])
        y = (keypoints[..., 1] + center - PIXEL_CENTER) * (height / size[0])
        last = 1 - 2 * center  # a mirrored index counts from the last pixel
        x, y = width - last - x if flip_x else x, height - last - y if flip_y else y
        moved = torch.stack([x, y, keypoints[..., 2]], dim=-1)
        # Both flips together rotate the image without mirroring it.
        return moved[:, flip_order(self.keypoint_names)] if flip_x != flip_y else moved


def _flip_boxes(boxes: Tensor, size: Size, flip_x: bool, flip_y: bool) -> Tensor:
    height, width = size
    if flip_x:
        boxes = box_ops.flip(boxes, width)
    if flip_y:
        x1, y1, x2, y2 = boxes.unbind(-1)
        boxes = torch.stack([x1, height - y2, x2, height - y1], dim=-1)
    return boxes


def build_transform(
    cfg: CfgNode, train: bool, keypoint_names: Sequence[str] = ()
) -> DetectionTransform:
    """Build the transform of INPUT; for evaluation it only resizes.

    For test-time augmentation and tiling, which resize images themselves, it changes nothing.
    """
    inputs, convention = cfg.INPUT, convention_of(cfg)
    keypoint_names = with_sides(keypoint_names, cfg.DATASETS.KEYPOINT_FLIP_PAIRS)
    if not train:
        resizes_later = cfg.TEST.BBOX_AUG.ENABLED or cfg.TEST.TILE
        limits = [inputs.MIN_SIZE_TEST], inputs.MAX_SIZE_TEST
        resize = None if resizes_later else RandomShortestSize(*limits, convention.resize)
        return DetectionTransform(resize, keypoint_names=keypoint_names, convention=convention)
    limits = inputs.MIN_SIZE_TRAIN, inputs.MAX_SIZE_TRAIN
    resize = RandomShortestSize(*limits, convention.resize)
    flip = inputs.HORIZONTAL_FLIP_PROB_TRAIN, inputs.VERTICAL_FLIP_PROB_TRAIN
    rotation = None
    if inputs.ROTATION:
        offset = PIXEL_CENTER - convention.keypoint_center
        rotation = RandomRotation(inputs.ROTATION, mean_color(cfg), offset)
    color = build_color_jitter(cfg)
    return DetectionTransform(resize, flip, color, rotation, keypoint_names, convention)


def build_color_jitter(cfg: CfgNode) -> Callable[[Tensor], Tensor] | None:
    """Build the color jitter of INPUT; None if it changes nothing.

    Without three channels only brightness and contrast change, by one factor for all channels.
    """
    amounts = [cfg.INPUT.BRIGHTNESS, cfg.INPUT.CONTRAST, cfg.INPUT.SATURATION, cfg.INPUT.HUE]
    if not any(amounts):
        return None
    from torchvision.transforms import v2  # takes longer to import than all of detlite

    jitter = v2.ColorJitter(*amounts)
    if len(cfg.INPUT.PIXEL_MEAN) == 3:
        return jitter
    return partial(_as_gray, jitter)


def _as_gray(jitter: Callable[[Tensor], Tensor], image: Tensor) -> Tensor:
    """Apply `jitter` to an image [C, H, W] as a gray image with its channels stacked vertically."""
    return jitter(image.flatten(0, 1)[None]).view_as(image)


def mean_color(cfg: CfgNode) -> Color:
    """Return the color that the model normalizes to 0."""
    mean = cfg.INPUT.PIXEL_MEAN
    if not cfg.INPUT.TO_BGR255:
        return tuple(255 * value for value in mean)
    return tuple(reversed(mean)) if len(mean) == 3 else tuple(mean)
