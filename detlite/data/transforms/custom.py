"""Custom transforms of training images: functions, and pipelines of other libraries."""

from collections.abc import Callable, Sequence, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor

from detlite.config import ConfigError
from detlite.data.datasets.coco import Target
from detlite.registry import Registry
from detlite.structures import boxes as box_ops
from detlite.structures.keypoints import PIXEL_CENTER
from detlite.structures.masks.packed import PackedMasks
from detlite.structures.object_fields import target_fields

from .targets import TargetTransform, crop_target, object_tensors, select_objects

_MARGIN = 0.5  # by which interpolation may leave 0..1; images of 0..255 and normalized ones do more
TRANSFORMS: Registry[TargetTransform] = Registry("transform")
"""Transforms that INPUT.TRANSFORMS can name. `@TRANSFORMS.register("mine")` adds a function of an
image [C, H, W], uint8 or float in 0..1, and its target, see `DetectionTransform`. It returns
changed copies of both, and uses torch's random generator.
"""


def apply_custom(
    transforms: Sequence[tuple[str, TargetTransform]], image: Tensor, target: Target
) -> tuple[Tensor, Target]:
    """Apply transforms with their names, and check what they return. Raises ConfigError."""
    for name, transform in transforms:
        channels, entries = len(image), {*target}
        image, target = transform(image, target)
        if isinstance(target.get("boxes"), Tensor):
            target = {**target, "boxes": box_ops.to_xyxy(target["boxes"])}
        if problem := _problem(image, target, channels, entries):
            where = f"(image id {target.get('image_id')})"
            raise ConfigError(f"INPUT.TRANSFORMS: {name} returned {problem} {where}")
        target = crop_target(target, 0, 0, image.shape[1], image.shape[2])
    return image, target


def _problem(image: Tensor, target: Target, channels: int, entries: Set[str]) -> str:
    """Return what is wrong with an image and a target that had these `entries` before."""
    if not isinstance(image, Tensor) or image.ndim != 3 or len(image) != channels:
        return f"no image [{channels}, H, W]"
    is_unit = image.is_floating_point() and (image - 0.5).abs().max() < 0.5 + _MARGIN
    if image.dtype != torch.uint8 and not is_unit:
        return f"an image {image.dtype} that is neither uint8 nor float in 0..1"
    if missing := sorted(entries - target.keys()):
        return f"a target without its entry {missing[0]!r}"
    if unknown := sorted(target.keys() - entries - target_fields(target).keys()):
        return (
            f"a target with the entry {unknown[0]!r}, which the following steps would not select "
            "with the objects: declare it in OBJECT_FIELDS"
        )
    names = object_tensors(target) | (target.keys() & {"masks"})
    counts = {name: len(target[name]) for name in sorted(names)}
    if len(set(counts.values())) > 1:
        return f"different numbers of objects: {counts}"
    boxes = target["boxes"]
    if boxes.ndim != 2 or boxes.shape[1] != 4 or not boxes.isfinite().all():
        return "boxes that are not finite numbers [N, 4]"
    if (boxes[:, 2:] < boxes[:, :2]).any():
        return "boxes that are not (x1, y1, x2, y2)"
    return ""


def wrap_torchvision(pipeline: Callable[[Any], Any]) -> TargetTransform:
    """Return a transform that applies a pipeline of `torchvision.transforms.v2`."""

    def apply(image: Tensor, target: Target) -> tuple[Tensor, Target]:
        from torchvision import tv_tensors as tv

        parts, size = _Parts(image, target), (image.shape[1], image.shape[2])
        sample = {
            "image": tv.Image(image),
            "boxes": tv.BoundingBoxes(
                torch.from_numpy(parts.boxes), format="XYXY", canvas_size=size
            ),
            "points": tv.KeyPoints(torch.from_numpy(parts.points), canvas_size=size),
            "labels": torch.arange(len(parts.boxes)),  # SanitizeBoundingBoxes may drop some
        }
        if len(parts.bitmaps):
            sample["masks"] = tv.Mask(torch.from_numpy(parts.bitmaps))
        changed = {name: box_ops.to_xyxy(value) for name, value in pipeline(sample).items()}
        pixels = changed.pop("image")
        arrays = {name: tensor.numpy() for name, tensor in changed.items()}
        masks = arrays.get("masks", parts.bitmaps)
        boxes, points = arrays["boxes"], arrays["points"]
        return pixels, parts.to_target(arrays["labels"], boxes, masks, points, pixels)

    return apply


def wrap_albumentations(transforms: Sequence[Any]) -> TargetTransform:
    """Return a transform that applies a list of transforms of albumentations."""
    import albumentations

    pipeline = albumentations.Compose(
        list(transforms),
        bbox_params=albumentations.BboxParams("pascal_voc", label_fields=["numbers"]),
        keypoint_params=albumentations.KeypointParams("xy", remove_invisible=False),
    )

    def apply(image: Tensor, target: Target) -> tuple[Tensor, Target]:
        parts = _Parts(image, target)
        pipeline.set_random_seed(int(torch.randint(1 << 31, ())))
        changed = pipeline(
            image=np.ascontiguousarray(image.permute(1, 2, 0).numpy()),
            bboxes=parts.boxes,
            numbers=np.arange(len(parts.boxes)),
            keypoints=parts.points - PIXEL_CENTER,  # numbers of pixels
            **({"masks": parts.bitmaps} if len(parts.bitmaps) else {}),
        )
        pixels = torch.from_numpy(changed["image"].copy()).permute(2, 0, 1).contiguous()
        kept = np.array(changed["numbers"], np.int64)
        masks = np.asarray(changed["masks"])[kept] if len(parts.bitmaps) else parts.bitmaps
        boxes, points = np.asarray(changed["bboxes"]), changed["keypoints"] + PIXEL_CENTER
        return pixels, parts.to_target(kept, boxes, masks, points, pixels)

    return apply


class _Parts:
    """The parts of a target in the form that other libraries transform.

    Attributes:
        boxes: float32 [N + M, 4], of N objects and M ignored regions.
        bitmaps: uint8 [N + M, H, W], empty for regions; without masks [0, H, W].
        points: float32 [N * P + 3, 2]; the last three show if the image is mirrored.
    """

    def __init__(self, image: Tensor, target: Target) -> None:
        if "proposals" in target:
            raise ConfigError("INPUT.TRANSFORMS: wrapped pipelines do not move proposals")
        for name, field in target_fields(target).items():
            if field.has_coordinates:
                raise ConfigError(f"INPUT.TRANSFORMS: wrapped pipelines do not move {name}")
        height, width = image.shape[1:]
        regions = target.get("ignored_boxes", torch.zeros(0, 4))
        self._target, self._count = target, len(target["boxes"])
        self.boxes = torch.cat([target["boxes"], regions]).numpy()
        self.bitmaps = np.zeros((0, height, width), np.uint8)
        if "masks" in target:
            self.bitmaps = np.zeros((len(self.boxes), height, width), np.uint8)
            self.bitmaps[: self._count] = target["masks"].bitmaps(height, width).numpy()
        points = target.get("keypoints", torch.zeros(0, 0, 3))[..., :2].reshape(-1, 2).numpy()
        corner = np.array([[width / 2, height / 2]], np.float32)
        probe = corner + np.array([[0, 0], [1, 0], [0, 1]], np.float32)
        self.points = np.concatenate([points, probe]).astype(np.float32)

    def to_target(
        self, kept: np.ndarray, boxes: np.ndarray, bitmaps: np.ndarray, points: np.ndarray,
        image: Tensor,
    ) -> Target:  # fmt: skip
        """Return the target of a transformed image; `kept` are the indices of the kept boxes."""
        is_object = kept < self._count
        keep = torch.zeros(self._count, dtype=torch.bool)
        keep[kept[is_object]] = True
        target = dict(select_objects(self._target, keep))
        moved = torch.from_numpy(boxes.astype(np.float32).reshape(-1, 4))
        target["boxes"] = moved[is_object]
        if "ignored_boxes" in target:
            target["ignored_boxes"] = moved[~is_object]
        if "masks" in target:
            target["masks"] = PackedMasks.from_bitmaps(torch.from_numpy(bitmaps[is_object]))
        if "keypoints" in target:
            right, down = points[-2:] - points[-3]
            if right[0] * down[1] < right[1] * down[0]:
                raise ConfigError(
                    "INPUT.TRANSFORMS: a pipeline mirrors images, which would exchange left and "
                    "right keypoints. Use INPUT.HORIZONTAL_FLIP_PROB_TRAIN instead"
                )
            xy = torch.from_numpy(points[:-3].astype(np.float32))
            # torchvision moves points outside of the image to its border.
            limit = torch.tensor([image.shape[2] - 1, image.shape[1] - 1])
            inside = ((xy > 0) & (xy < limit)).all(1, keepdim=True)
            shape = (self._count, -1, 2)
            visibility = target["keypoints"][..., 2:] * inside.reshape(*shape[:2], 1)[keep]
            target["keypoints"] = torch.cat([xy.reshape(shape)[keep], visibility], dim=2)
        return target
