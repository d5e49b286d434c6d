"""Augmentation: image, boxes, masks and keypoints together (torchvision.transforms.v2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from yacs.config import CfgNode

from ..structures.keypoints import PIXEL_CENTRE, flip_order
from .resize import RandomShortestSize

Target = dict[str, Any]
_MIN_BOX_SIDE = 1.0  # pixels


class DetectionTransform:
    """Applies v2 transforms to an image and its target, then drops boxes smaller than a pixel.

    In and out are plain tensors: image uint8 [3, H, W], and a target with `boxes` [N, 4] xyxy,
    `labels` [N] and perhaps `masks` [N, H, W], `keypoints` [N, P, 3] and `proposals` [R, 4] xyxy,
    of which all stay; other entries of the target pass unchanged.

    Args:
        transforms: flips and resizes among them move keypoints too; nothing else may move pixels.
        keypoint_names: "left_..." and "right_..." change places in a mirrored picture.
        keypoint_centre: where in the pixel of that index a keypoint that comes out lies; those that
            go in lie at its centre.
    """

    def __init__(
        self,
        transforms: Sequence[v2.Transform],
        keypoint_names: Sequence[str] = (),
        keypoint_centre: float = PIXEL_CENTRE,
    ) -> None:
        self._transform = v2.Compose([*transforms, v2.ClampBoundingBoxes()])
        self._flip_order = flip_order(keypoint_names)
        self._keypoint_centre = keypoint_centre

    def __call__(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        height, width = image.shape[-2:]
        target = dict(target)
        for name in target.keys() & {"boxes", "proposals"}:
            target[name] = tv_tensors.BoundingBoxes(
                target[name], format="XYXY", canvas_size=(height, width)
            )
        if "masks" in target:
            target["masks"] = tv_tensors.Mask(target["masks"])
        # Where this box in the top left corner ends up tells what happened to the picture.
        corner = tv_tensors.BoundingBoxes(
            [[0.0, 0.0, width / 2, height / 2]], format="XYXY", canvas_size=(height, width)
        )
        image, target, corner = self._transform(tv_tensors.Image(image), target, corner)
        if "keypoints" in target:
            target["keypoints"] = _move_keypoints(
                target["keypoints"],
                (height, width),
                corner,
                self._flip_order,
                self._keypoint_centre,
            )
        plain = {
            key: value.as_subclass(Tensor) if isinstance(value, Tensor) else value
            for key, value in target.items()
        }
        return image.as_subclass(Tensor), _drop_small(plain)


def build_transform(
    cfg: CfgNode, train: bool, keypoint_names: Sequence[str] = ()
) -> DetectionTransform:
    """The transform of INPUT; for evaluation the resize alone.

    Test-time augmentation resizes by itself, and is given pictures as they are.
    """
    inputs, inclusive = cfg.INPUT, cfg.MODEL.INCLUSIVE_BOXES
    if not train and cfg.TEST.BBOX_AUG.ENABLED:
        return DetectionTransform([])
    if not train:
        return DetectionTransform(
            [
                RandomShortestSize(
                    [inputs.MIN_SIZE_TEST], inputs.MAX_SIZE_TEST, inputs.RESIZE, inclusive
                )
            ]
        )
    transforms: list[v2.Transform] = []
    jitter = [inputs.BRIGHTNESS, inputs.CONTRAST, inputs.SATURATION, inputs.HUE]
    if any(jitter):
        transforms.append(v2.ColorJitter(*jitter))
    if inputs.HORIZONTAL_FLIP_PROB_TRAIN > 0:
        transforms.append(v2.RandomHorizontalFlip(inputs.HORIZONTAL_FLIP_PROB_TRAIN))
    if inputs.VERTICAL_FLIP_PROB_TRAIN > 0:
        transforms.append(v2.RandomVerticalFlip(inputs.VERTICAL_FLIP_PROB_TRAIN))
    # The resize comes last: it mostly enlarges.
    transforms.append(
        RandomShortestSize(inputs.MIN_SIZE_TRAIN, inputs.MAX_SIZE_TRAIN, inputs.RESIZE, inclusive)
    )
    return DetectionTransform(transforms, keypoint_names, cfg.MODEL.ROI_KEYPOINT_HEAD.PIXEL_CENTRE)


def _move_keypoints(
    keypoints: Tensor,
    size: tuple[int, int],
    corner: tv_tensors.BoundingBoxes,
    order: list[int],
    centre: float,
) -> Tensor:
    """Keypoints [N, P, 3] of a picture of (height, width) after what moved `corner`."""
    new_height, new_width = corner.canvas_size
    x = (keypoints[..., 0] + centre - PIXEL_CENTRE) * (new_width / size[1])
    y = (keypoints[..., 1] + centre - PIXEL_CENTRE) * (new_height / size[0])
    left_right, up_down = (corner.as_subclass(Tensor)[0, :2] > 0).tolist()
    last = 1 - 2 * centre  # mirrored indices are counted from the last pixel
    x, y = new_width - last - x if left_right else x, new_height - last - y if up_down else y
    moved = torch.stack([x, y, keypoints[..., 2]], dim=-1)
    # Both flips together turn the picture without mirroring it.
    return moved[:, order] if left_right != up_down else moved


def _drop_small(target: Target) -> Target:
    boxes = target["boxes"]
    keep = (boxes[:, 2:] - boxes[:, :2] >= _MIN_BOX_SIDE).all(dim=1)
    if keep.all():  # nearly always, and masks are large
        return target
    return {
        key: value[keep] if key in ("boxes", "labels", "masks", "keypoints") else value
        for key, value in target.items()
    }
