"""Augmentation and resizing: image, boxes and masks together (torchvision.transforms.v2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F
from yacs.config import CfgNode

from ..structures.keypoints import PIXEL_CENTRE, flip_order

Target = dict[str, Any]
_MIN_BOX_SIDE = 1.0  # pixels


def get_size(
    size: tuple[int, int], min_size: int, max_size: int, resize: str = "round"
) -> tuple[int, int]:
    """The size at which the network sees a picture.

    The short side becomes `min_size`, unless the long side would exceed `max_size`: then that
    becomes `max_size`. The aspect ratio is kept up to rounding to whole pixels.

    Args:
        size: (height, width) of the picture.
        min_size: wanted short side in pixels.
        max_size: largest long side in pixels.
        resize: how sides are rounded, see INPUT.RESIZE.

    Returns:
        (height, width), each at least 1.
    """
    if resize == "floor":
        # In whole numbers, so that the short side is met exactly and no product falls just short.
        short, long = min(size), max(size)
        if long * min_size > max_size * short:
            min_size = round(max_size * short / long)
        height, width = (max(1, min_size * side // short) for side in size)
        return height, width
    if resize == "interpolate":
        scale = min(min_size / min(size), max_size / max(size))
        height, width = (max(1, int(side * scale)) for side in size)
        return height, width
    # In these steps: where a side falls halfway between two pixels, as that of 88 x 44 does, the
    # last bit decides.
    short = min(size)
    sides = [min_size if side == short else min_size / short * side for side in size]
    if max(sides) > max_size:
        shrink = max_size / max(sides)
        sides = [side * shrink for side in sides]
    height, width = (max(1, int(side + 0.5)) for side in sides)
    return height, width


def resize_shortest(image: Tensor, min_size: int, max_size: int, resize: str = "round") -> Tensor:
    """Resizes a picture as in evaluation, bilinearly, see `get_size`.

    Args:
        image: uint8 [3, H, W].
        min_size: wanted short side in pixels.
        max_size: largest long side in pixels.
        resize: how, see INPUT.RESIZE.

    Returns:
        uint8 [3, h, w]; with "interpolate" float32 in 0..1.
    """
    size = get_size((image.shape[-2], image.shape[-1]), min_size, max_size, resize)
    return _resize_image(image, size, resize)


class RandomShortestSize(v2.Transform):
    """Resizes to a short side drawn from `min_sizes`, see `get_size`.

    Where x2 and y2 of boxes count the last pixel inside (`inclusive`), that pixel keeps its size,
    as in `OutputRules.boxes`.
    """

    def __init__(
        self,
        min_sizes: Sequence[int],
        max_size: int,
        resize: str = "round",
        inclusive: bool = False,
    ) -> None:
        super().__init__()
        self.min_sizes = tuple(min_sizes)
        self.max_size = max_size
        self.resize = resize
        self.inclusive = inclusive

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """What is drawn for a picture and its target: their new size."""
        height, width = v2.query_size(flat_inputs)
        drawn = int(torch.randint(len(self.min_sizes), ())) if len(self.min_sizes) > 1 else 0
        min_size = self.min_sizes[drawn]
        return {"size": get_size((height, width), min_size, self.max_size, self.resize)}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """The picture, its boxes or its masks in that size."""
        if isinstance(inpt, tv_tensors.Mask):
            return tv_tensors.wrap(
                _resize_masks(inpt.as_subclass(Tensor), params["size"]), like=inpt
            )
        if isinstance(inpt, tv_tensors.Image):
            return tv_tensors.wrap(
                _resize_image(inpt.as_subclass(Tensor), params["size"], self.resize), like=inpt
            )
        if self.inclusive and isinstance(inpt, tv_tensors.BoundingBoxes):
            last_pixel = torch.tensor([0.0, 0.0, 1.0, 1.0])
            boxes = tv_tensors.wrap(inpt.as_subclass(Tensor) - last_pixel, like=inpt)
            resized = F.resize(boxes, list(params["size"]))
            return tv_tensors.wrap(resized.as_subclass(Tensor) + last_pixel, like=resized)
        return F.resize(inpt, list(params["size"]))


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


def _resize_image(image: Tensor, size: tuple[int, int], resize: str) -> Tensor:
    if resize == "interpolate":
        # Not rounded to uint8 again: the model takes float images as well.
        return interpolate(image[None].float() / 255, size=size, mode="bilinear")[0]
    # By Pillow, as the other frameworks do it: torch's own is one level off in a few pixels, which
    # is enough to move a box by a fifth of a pixel.
    picture = Image.fromarray(image.permute(1, 2, 0).cpu().numpy())
    resized = np.array(picture.resize(size[::-1], Image.Resampling.BILINEAR))
    return torch.from_numpy(resized).permute(2, 0, 1).contiguous().to(image.device)


def _resize_masks(masks: Tensor, size: tuple[int, int]) -> Tensor:
    """Takes the pixel at each new pixel's centre, as bilinear resizing of the image does.

    v2's own choice, NEAREST, takes that at its corner: half a pixel off the image.
    """
    # numpy copies bytes twice as fast as interpolate, which matters with a hundred masks.
    columns, rows = (
        (2 * np.arange(new) + 1) * old // (2 * new)
        for new, old in zip(reversed(size), reversed(masks.shape[-2:]), strict=True)
    )
    return torch.from_numpy(masks.numpy().take(columns, axis=2).take(rows, axis=1))


def _drop_small(target: Target) -> Target:
    boxes = target["boxes"]
    keep = (boxes[:, 2:] - boxes[:, :2] >= _MIN_BOX_SIDE).all(dim=1)
    if keep.all():  # nearly always, and masks are large
        return target
    return {
        key: value[keep] if key in ("boxes", "labels", "masks", "keypoints") else value
        for key, value in target.items()
    }
