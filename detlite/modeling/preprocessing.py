"""From lists of images and dicts to records: checked on the host, padded, moved, normalised.

The public edge on the way in. Nothing is read back from the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from yacs.config import CfgNode

from detlite.structures import boxes as box_ops
from detlite.structures.instances import GroundTruth, Images, Proposals
from detlite.structures.masks.packed import PackedMasks
from detlite.structures.padded_batch import ImagesOnCanvas

from .input_checks import check_images, check_proposals, check_targets


class Normalizer(nn.Module):
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

    @property
    def dtype(self) -> torch.dtype:
        """Of the batch and of coordinates: float32, or that of a float64 model."""
        return torch.promote_types(self.pixel_mean.dtype, torch.float32)

    def forward(self, images: Sequence[Tensor]) -> Images:
        """Images [3, h, w], uint8 in 0..255 or float in 0..1 -> a batch [B, 3, H, W].

        Raises:
            TypeError, ValueError: an image of another type or shape, or none at all.
        """
        check_images(images)
        sizes = [(image.shape[-2], image.shape[-1]) for image in images]
        step = max(self.divisibility, 1)
        canvas = [images.canvas] if isinstance(images, ImagesOnCanvas) else []
        sides = zip(*sizes, *canvas, strict=True)
        height, width = (-(-max(side) // step) * step for side in sides)
        device = self.pixel_mean.device
        pixels = torch.zeros((len(images), 3, height, width), dtype=self.dtype, device=device)
        pixels = pixels.contiguous(memory_format=self.memory_format)
        for padded, image, (h, w) in zip(pixels, images, sizes, strict=True):
            padded[:, :h, :w] = self._normalize(image)
        return Images(pixels, torch.tensor(sizes).to(device, non_blocking=True))

    def _normalize(self, image: Tensor) -> Tensor:
        in_255 = not image.is_floating_point()
        image = image.to(self.pixel_mean.device, non_blocking=True).to(self.dtype)
        if in_255 != self.bgr255:
            image = image * 255 if self.bgr255 else image / 255
        if self.bgr255:
            image = image.flip(0)
        return (image - self.pixel_mean) / self.pixel_std


def prepare_targets(
    targets: Sequence[dict[str, Any]] | None,
    images: Sequence[Tensor],
    num_classes: int,
    needs: Sequence[str] = (),
    soft_masks: bool = False,
    dtype: torch.dtype = torch.float32,
) -> GroundTruth:
    """Checks training targets and pads them to one length.

    Args:
        targets, images: as in `DetectionModel.forward`.
        num_classes: with background.
        needs: "masks", "keypoints", both or neither: what there must be beside boxes and labels.
        soft_masks: masks are trained on averages of bitmaps, which polygons do not give.
        dtype: of coordinates.

    Returns:
        Ground truth [B, G] on the CPU, with nothing in it but what is needed; G is at least 1.

    Raises:
        TypeError, ValueError: naming the image and the field that does not fit.
    """
    checked = check_targets(targets, images, num_classes, needs, soft_masks)
    most = max(1, *(len(target["labels"]) for target in checked))

    def padded(name: str, kind: torch.dtype) -> Tensor:
        rows = [target[name].to("cpu", kind) for target in checked]
        return torch.stack(
            [F.pad(row, [0, 0] * (row.ndim - 1) + [0, most - len(row)]) for row in rows]
        )

    return GroundTruth(
        padded("boxes", dtype),
        padded("labels", torch.int64),
        PackedMasks.collate([t["masks"] for t in checked], most) if "masks" in needs else None,
        padded("keypoints", dtype) if "keypoints" in needs else None,
    )


def prepare_proposals(
    proposals: Sequence[Tensor | None] | None, count: int, dtype: torch.dtype = torch.float32
) -> Proposals:
    """Checks the boxes given with images and pads them to one length.

    Args:
        proposals: float xyxy [P_i, 4] in each of `count` images; there may be none in it.
        dtype: of coordinates.

    Returns:
        Proposals [B, P] on the CPU, P at least 1, all with the score 0. Those without an extent
        are left out: resizing may have made some.

    Raises:
        TypeError, ValueError: naming the image whose proposals are missing or do not fit.
    """
    given = [boxes.to("cpu", dtype) for boxes in check_proposals(proposals, count)]
    given = [boxes[box_ops.has_min_size(boxes, 0)] for boxes in given]
    most = max(1, *map(len, given))
    boxes = torch.stack([F.pad(own, (0, 0, 0, most - len(own))) for own in given])
    counts = torch.tensor([len(own) for own in given])
    valid = torch.arange(most) < counts[:, None]
    return Proposals(boxes, torch.zeros(valid.shape, dtype=dtype), valid)


def build_normalizer(cfg: CfgNode) -> Normalizer:
    """The normalizer that INPUT and DATALOADER describe."""
    return Normalizer(
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
