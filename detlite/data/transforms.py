"""Augmentation and resizing: image, boxes and masks together (torchvision.transforms.v2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F
from yacs.config import CfgNode

Target = dict[str, Any]
_MIN_BOX_SIDE = 1.0  # pixels


def get_size(size: tuple[int, int], min_size: int, max_size: int) -> tuple[int, int]:
    """The size at which the network sees a picture.

    The short side becomes `min_size`, unless the long side would exceed `max_size`: then that
    becomes `max_size`. The aspect ratio is kept up to rounding to whole pixels.

    Args:
        size: (height, width) of the picture.
        min_size: wanted short side in pixels.
        max_size: largest long side in pixels.

    Returns:
        (height, width), each at least 1.
    """
    scale = min(min_size / min(size), max_size / max(size))
    height, width = (max(1, int(side * scale + 0.5)) for side in size)
    return height, width


def resize_shortest(image: Tensor, min_size: int, max_size: int) -> Tensor:
    """Resizes a picture as in evaluation: bilinear, antialiased, see `get_size`.

    Args:
        image: uint8 [3, H, W].
        min_size: wanted short side in pixels.
        max_size: largest long side in pixels.

    Returns:
        uint8 [3, h, w].
    """
    return _resize_image(image, get_size((image.shape[-2], image.shape[-1]), min_size, max_size))


class RandomShortestSize(v2.Transform):
    """Resizes to a short side drawn from `min_sizes`, see `get_size`."""

    def __init__(self, min_sizes: Sequence[int], max_size: int) -> None:
        super().__init__()
        self.min_sizes = tuple(min_sizes)
        self.max_size = max_size

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        height, width = v2.query_size(flat_inputs)
        drawn = int(torch.randint(len(self.min_sizes), ())) if len(self.min_sizes) > 1 else 0
        return {"size": get_size((height, width), self.min_sizes[drawn], self.max_size)}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        if isinstance(inpt, tv_tensors.Mask):
            return tv_tensors.wrap(
                _resize_masks(inpt.as_subclass(Tensor), params["size"]), like=inpt
            )
        if isinstance(inpt, tv_tensors.Image):
            return tv_tensors.wrap(
                _resize_image(inpt.as_subclass(Tensor), params["size"]), like=inpt
            )
        return F.resize(inpt, list(params["size"]))


class DetectionTransform:
    """Applies v2 transforms to an image and its target, then drops boxes smaller than a pixel.

    In and out are plain tensors: image uint8 [3, H, W], and a target with `boxes` [N, 4] xyxy,
    `labels` [N] and perhaps `masks` [N, H, W]; other entries of the target pass unchanged.
    """

    def __init__(self, transforms: Sequence[v2.Transform]) -> None:
        self._transform = v2.Compose([*transforms, v2.ClampBoundingBoxes()])

    def __call__(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        height, width = image.shape[-2:]
        target = dict(target)
        target["boxes"] = tv_tensors.BoundingBoxes(
            target["boxes"], format="XYXY", canvas_size=(height, width)
        )
        if "masks" in target:
            target["masks"] = tv_tensors.Mask(target["masks"])
        image, target = self._transform(tv_tensors.Image(image), target)
        plain = {
            key: value.as_subclass(Tensor) if isinstance(value, Tensor) else value
            for key, value in target.items()
        }
        return image.as_subclass(Tensor), _drop_small(plain)


def build_transform(cfg: CfgNode, train: bool) -> DetectionTransform:
    """The transform of INPUT; for evaluation the resize alone."""
    inputs = cfg.INPUT
    if not train:
        return DetectionTransform(
            [RandomShortestSize([inputs.MIN_SIZE_TEST], inputs.MAX_SIZE_TEST)]
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
    transforms.append(RandomShortestSize(inputs.MIN_SIZE_TRAIN, inputs.MAX_SIZE_TRAIN))
    return DetectionTransform(transforms)


def _resize_image(image: Tensor, size: tuple[int, int]) -> Tensor:
    return F.resize_image(image, list(size), F.InterpolationMode.BILINEAR, antialias=True)


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
        key: value[keep] if key in ("boxes", "labels", "masks") else value
        for key, value in target.items()
    }
