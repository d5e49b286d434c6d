"""Augmentation: image, boxes, masks and keypoints together (torchvision.transforms.v2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from yacs.config import CfgNode

from detlite.conventions import convention_of
from detlite.data.datasets.coco import Target
from detlite.structures import boxes as box_ops
from detlite.structures.keypoints import PIXEL_CENTER, flip_order
from detlite.structures.masks.packed import PackedMasks

from .crop import Colour, RandomCrop, keep_objects
from .resize import RandomShortestSize, ScaleJitter

Size = tuple[int, int]  # height, width


class DetectionTransform:
    """Applies v2 transforms to an image and its target, then drops boxes smaller than a pixel.

    In and out are plain tensors: image uint8 [3, H, W], and a target with `boxes` [N, 4] xyxy,
    `labels` [N] and perhaps `masks` (`PackedMasks`), `keypoints` [N, P, 3] and `proposals` [R, 4]
    xyxy, of which all stay; other entries of the target pass unchanged.

    Args:
        transforms: flips and then resizes among them move masks and keypoints too; nothing else of
            them may move pixels.
        keypoint_names: "left_..." and "right_..." change places in a mirrored picture.
        keypoint_center: where in the pixel of that index a keypoint that comes out lies; those that
            go in lie at its centre.
        crop: comes last.
    """

    def __init__(
        self,
        transforms: Sequence[v2.Transform],
        keypoint_names: Sequence[str] = (),
        keypoint_center: float = PIXEL_CENTER,
        crop: RandomCrop | None = None,
    ) -> None:
        self._transform = v2.Compose([*transforms, v2.ClampBoundingBoxes()])
        self._flip_order = flip_order(keypoint_names)
        self._keypoint_center = keypoint_center
        self.crop = crop

    def __call__(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        image, target = self.uncropped(image, target)
        return self.crop(image, target) if self.crop else (image, target)

    def uncropped(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        """All but the crop."""
        height, width = image.shape[-2:]
        target = dict(target)
        boxed = target.keys() & {"boxes", "proposals"}
        for name in boxed:
            target[name] = tv_tensors.BoundingBoxes(
                target[name], format="XYXY", canvas_size=(height, width)
            )
        # v2 would look into it for tensors.
        masks: PackedMasks | None = target.pop("masks", None)
        # Where this box in the top left corner ends up tells what happened to the picture.
        corner = tv_tensors.BoundingBoxes(
            [[0.0, 0.0, width / 2, height / 2]], format="XYXY", canvas_size=(height, width)
        )
        image, target, corner = self._transform(tv_tensors.Image(image), target, corner)
        flip_x, flip_y = (corner.as_subclass(Tensor)[0, :2] > 0).tolist()
        motion = (flip_x, flip_y, (height, width), corner.canvas_size)
        if masks is not None:
            target["masks"] = masks.transformed(*motion)
        if "keypoints" in target:
            target["keypoints"] = self._move_keypoints(target["keypoints"], *motion)
        for name in boxed:
            target[name] = target[name].as_subclass(Tensor)
        target = keep_objects(target, box_ops.has_min_size(target["boxes"], 1))
        return image.as_subclass(Tensor), target

    def _move_keypoints(
        self, keypoints: Tensor, flip_x: bool, flip_y: bool, in_size: Size, out_size: Size
    ) -> Tensor:
        """Keypoints [N, P, 3] of a picture that was flipped and resized."""
        center, (height, width) = self._keypoint_center, out_size
        x = (keypoints[..., 0] + center - PIXEL_CENTER) * (width / in_size[1])
        y = (keypoints[..., 1] + center - PIXEL_CENTER) * (height / in_size[0])
        last = 1 - 2 * center  # mirrored indices are counted from the last pixel
        x, y = width - last - x if flip_x else x, height - last - y if flip_y else y
        moved = torch.stack([x, y, keypoints[..., 2]], dim=-1)
        # Both flips together turn the picture without mirroring it.
        return moved[:, self._flip_order] if flip_x != flip_y else moved


def build_transform(
    cfg: CfgNode, train: bool, keypoint_names: Sequence[str] = ()
) -> DetectionTransform:
    """The transform of INPUT; for evaluation the resize alone.

    Test-time augmentation and tiles resize by themselves, and are given pictures as they are.
    """
    inputs, convention = cfg.INPUT, convention_of(cfg)
    transforms: list[v2.Transform] = []
    if not train:
        if not (cfg.TEST.BBOX_AUG.ENABLED or cfg.TEST.TILE):
            sizes = [inputs.MIN_SIZE_TEST], inputs.MAX_SIZE_TEST
            transforms.append(RandomShortestSize(*sizes, convention))
        return DetectionTransform(transforms, keypoint_names, convention.keypoint_center)
    jitter = [inputs.BRIGHTNESS, inputs.CONTRAST, inputs.SATURATION, inputs.HUE]
    if any(jitter):
        transforms.append(v2.ColorJitter(*jitter))
    if inputs.HORIZONTAL_FLIP_PROB_TRAIN > 0:
        transforms.append(v2.RandomHorizontalFlip(inputs.HORIZONTAL_FLIP_PROB_TRAIN))
    if inputs.VERTICAL_FLIP_PROB_TRAIN > 0:
        transforms.append(v2.RandomVerticalFlip(inputs.VERTICAL_FLIP_PROB_TRAIN))
    # The resize comes last: it mostly enlarges.
    crop = None
    if inputs.SCALE_JITTER:
        transforms.append(ScaleJitter(inputs.CROP_SIZE, inputs.SCALE_JITTER, convention))
        crop = RandomCrop(inputs.CROP_SIZE, mean_colour(cfg))
    else:
        transforms.append(
            RandomShortestSize(inputs.MIN_SIZE_TRAIN, inputs.MAX_SIZE_TRAIN, convention)
        )
    return DetectionTransform(transforms, keypoint_names, convention.keypoint_center, crop)


def mean_colour(cfg: CfgNode) -> Colour:
    """The colour that the model normalises to 0."""
    mean = cfg.INPUT.PIXEL_MEAN
    red, green, blue = reversed(mean) if cfg.INPUT.TO_BGR255 else (255 * value for value in mean)
    return red, green, blue
