"""What a model is given: checked, normalised and batched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from ..structures import boxes as box_ops
from ..structures.image_batch import ImageBatch, batch_images


class InputNormalizer(nn.Module):
    """RGB images of any sizes -> one normalised batch on the model's device.

    Args:
        pixel_mean, pixel_std: per channel, in the order and scale that `bgr255` sets.
        bgr255: feed BGR in 0..255 instead of RGB in 0..1.
        divisibility: pad height and width to a multiple of this.
        memory_format: of the batch.
    """

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(
        self,
        pixel_mean: Sequence[float],
        pixel_std: Sequence[float],
        bgr255: bool,
        divisibility: int,
        memory_format: torch.memory_format = torch.channels_last,
    ) -> None:
        super().__init__()
        self.register_buffer("pixel_mean", torch.tensor(pixel_mean).view(3, 1, 1), persistent=False)
        self.register_buffer("pixel_std", torch.tensor(pixel_std).view(3, 1, 1), persistent=False)
        self.bgr255 = bgr255
        self.divisibility = divisibility
        self.memory_format = memory_format

    def forward(self, images: Sequence[Tensor]) -> ImageBatch:
        """Images [3, h, w], uint8 in 0..255 or float in 0..1 -> a batch [B, 3, H, W].

        Raises:
            TypeError, ValueError: an image of another type or shape, or none at all.
        """
        check_images(images)
        normalized = [self._normalize(image) for image in images]
        return batch_images(normalized, self.divisibility, self.memory_format)

    def _normalize(self, image: Tensor) -> Tensor:
        image = image.to(self.pixel_mean.device)
        in_255 = not image.is_floating_point()
        image = image.to(torch.promote_types(self.pixel_mean.dtype, torch.float32))
        if in_255 != self.bgr255:
            image = image * 255 if self.bgr255 else image / 255
        if self.bgr255:
            image = image.flip(0)
        return (image - self.pixel_mean) / self.pixel_std


def build_normalizer(cfg: CfgNode) -> InputNormalizer:
    """The normalizer that INPUT and DATALOADER describe."""
    return InputNormalizer(
        cfg.INPUT.PIXEL_MEAN,
        cfg.INPUT.PIXEL_STD,
        cfg.INPUT.TO_BGR255,
        cfg.DATALOADER.SIZE_DIVISIBILITY,
        memory_format(cfg),
    )


def memory_format(cfg: CfgNode) -> torch.memory_format:
    """The order of a model's tensors that MODEL.MEMORY_FORMAT names."""
    formats = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}
    return formats[cfg.MODEL.MEMORY_FORMAT]


def check_images(images: Sequence[Tensor]) -> None:
    """Raises TypeError or ValueError, naming the image, for what the model cannot take."""
    if isinstance(images, Tensor) or not isinstance(images, (list, tuple)):
        raise TypeError(f"images must be a list of tensors [3, H, W], not {type(images).__name__}")
    if not images:
        raise ValueError("images is empty: give at least one tensor [3, H, W]")
    for index, image in enumerate(images):
        if not isinstance(image, Tensor) or not (
            image.dtype == torch.uint8 or image.is_floating_point()
        ):
            found = image.dtype if isinstance(image, Tensor) else type(image).__name__
            raise TypeError(f"images[{index}] must be a uint8 or float tensor, not {found}")
        if image.ndim != 3 or image.shape[0] != 3 or 0 in image.shape:
            raise ValueError(
                f"images[{index}] must be [3, H, W] (RGB) with H, W > 0, not {list(image.shape)}"
            )


def prepare_proposals(
    proposals: Sequence[Tensor | None] | None,
    count: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:
    """Checks the regions given with images and moves them to `device`.

    Args:
        proposals: float xyxy [R_i, 4] in each image; there may be none in it.
        count: how many images.
        device: where the model is.
        dtype: the model's.

    Returns:
        Those with an extent: resizing may have left others without.

    Raises:
        TypeError, ValueError: naming the image whose regions are missing or do not fit.
    """
    if proposals is None:
        raise ValueError(
            "the model has no RPN and needs regions: `proposals` in each target, or "
            "model.detect(images, proposals)"
        )
    if len(proposals) != count:
        raise ValueError(f"{count} images, but proposals of {len(proposals)}")
    prepared = []
    for index, boxes in enumerate(proposals):
        if not isinstance(boxes, Tensor):
            found = "missing" if boxes is None else type(boxes).__name__
            raise TypeError(f"proposals of image {index} must be a tensor [R, 4], not {found}")
        boxes = boxes.to(device, dtype)
        if boxes.ndim != 2 or boxes.shape[1] != 4:
            raise ValueError(f"proposals of image {index} must be [R, 4], not {list(boxes.shape)}")
        if not boxes.isfinite().all():
            raise ValueError(f"proposals of image {index} must be finite")
        prepared.append(boxes[box_ops.at_least(boxes, 0)])
    return prepared


def prepare_targets(
    targets: Sequence[dict[str, Any]] | None,
    images: Sequence[Tensor],
    num_classes: int,
    device: torch.device,
    needs: Sequence[str] = (),
    dtype: torch.dtype = torch.float32,
) -> list[dict[str, Any]]:
    """Checks training targets and moves them to `device`, coordinates as `dtype`.

    Args:
        targets: for each image `boxes` float [G, 4] xyxy with positive sides, `labels` int64 [G]
            in 1..num_classes - 1 and, if needed, `masks` [G, H, W] and `keypoints` [G, P, 3].
        images: [3, H, W] each.
        num_classes: with background.
        device: where the model is.
        needs: "masks", "keypoints", both or neither: what there must be beside boxes and labels.
        dtype: the model's.

    Returns:
        The targets, with nothing in them but what is needed.

    Raises:
        TypeError, ValueError: naming the image and the field that does not fit.
    """
    if targets is None:
        raise ValueError("training needs targets: model(images, targets)")
    if len(targets) != len(images):
        raise ValueError(f"{len(images)} images, but {len(targets)} targets")
    prepared = []
    for index, (target, image) in enumerate(zip(targets, images, strict=True)):
        where = f"targets[{index}]"
        needed = ["boxes", "labels", *needs]
        missing = [name for name in needed if name not in target]
        if missing:
            raise ValueError(f"{where} has no {' and no '.join(missing)}")
        for name in needed:
            if not isinstance(target[name], Tensor):
                found = type(target[name]).__name__
                raise TypeError(f"{where}['{name}'] must be a tensor, not {found}")
        boxes = target["boxes"].to(device, dtype)
        labels = target["labels"].to(device, torch.int64)
        if boxes.ndim != 2 or boxes.shape[1] != 4:
            raise ValueError(f"{where}['boxes'] must be [G, 4], not {list(boxes.shape)}")
        if labels.shape != boxes.shape[:1]:
            raise ValueError(
                f"{where}: {len(boxes)} boxes, but labels of shape {list(labels.shape)}"
            )
        # NaN fails the comparison as well.
        if not (boxes[:, 2:] > boxes[:, :2]).all() or not boxes.isfinite().all():
            raise ValueError(f"{where}['boxes'] must be finite xyxy with x2 > x1 and y2 > y1")
        if len(labels) and not (int(labels.min()) >= 1 and int(labels.max()) < num_classes):
            raise ValueError(
                f"{where}['labels'] must lie in 1..{num_classes - 1} "
                f"(NUM_CLASSES is {num_classes} with background)"
            )
        ready = {"boxes": boxes, "labels": labels}
        if "masks" in needs:
            masks = target["masks"]
            if masks.shape != (len(boxes), *image.shape[1:]):
                raise ValueError(
                    f"{where}['masks'] must be {[len(boxes), *image.shape[1:]]} for its boxes "
                    f"and image, not {list(masks.shape)}"
                )
            ready["masks"] = masks.to(device)
        if "keypoints" in needs:
            keypoints = target["keypoints"].to(device, dtype)
            if keypoints.ndim != 3 or (len(keypoints), keypoints.shape[2]) != (len(boxes), 3):
                raise ValueError(
                    f"{where}['keypoints'] must be [{len(boxes)}, P, 3] for its boxes, not "
                    f"{list(keypoints.shape)}"
                )
            ready["keypoints"] = keypoints
        prepared.append(ready)
    return prepared
