"""Convert lists of images, targets and proposals to padded records.

Inputs are checked on the CPU; nothing is read back from the device.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from yacs.config import CfgNode

from detlite.structures import boxes as box_ops
from detlite.structures import to_device
from detlite.structures.instances import GroundTruth, Images, PaddedBatchImages, Proposals
from detlite.structures.masks.packed import PackedMasks
from detlite.structures.object_fields import target_fields

from .input_checks import check_boxes, check_images, check_target

NO_META_DEVICE = (
    "the model is on the meta device and has no values. load_state_dict(assign=True) and to_empty "
    "would not give it those of the anchors and means, which are no part of a state dict: build it "
    "on its device and load the weights without assign"
)


class Normalizer(nn.Module):
    """Normalizes images of any sizes and pads them to one batch on the device of the model.

    Args:
        pixel_mean, pixel_std: per channel, in the order and scale that `bgr255` sets.
        bgr255: convert to 0..255 instead of 0..1, and three channels from RGB to BGR.
        divisibility: pad height and width to a multiple of this number.
        channels_last: see `DetectionModel.use_memory_format`. The batch has the memory format that
            the weights have.
    """

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(
        self,
        pixel_mean: Sequence[float],
        pixel_std: Sequence[float],
        bgr255: bool,
        divisibility: int,
        channels_last: bool = True,
    ) -> None:
        super().__init__()
        for name, values in (("pixel_mean", pixel_mean), ("pixel_std", pixel_std)):
            # [1, C, 1, 1], so that `model.to(memory_format=...)` changes its strides too.
            self.register_buffer(name, torch.tensor(values)[None, :, None, None], persistent=False)
        self.bgr255 = bgr255
        self.divisibility = divisibility
        self.channels_last = channels_last  # torch.save cannot store torch.channels_last

    @property
    def channels(self) -> int:
        return self.pixel_mean.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """Type of the batch and of coordinates: float32, or float64 for a float64 model."""
        return torch.promote_types(self.pixel_mean.dtype, torch.float32)

    def forward(self, images: Sequence[Tensor]) -> Images:
        """Batch images, uint8 in 0..255 or float in 0..1, to [B, C, H, W]."""
        check_images(images, self.channels)
        device = self.pixel_mean.device
        if device.type == "meta" and images[0].device.type != "meta":
            raise RuntimeError(NO_META_DEVICE)
        half = self.pixel_mean.dtype in (torch.float16, torch.bfloat16)
        if half and not torch.is_autocast_enabled(device.type):
            raise TypeError(
                f"the model was converted to {self.pixel_mean.dtype}, but coordinates need float32:"
                " use detlite.optimize(model, 'float16' or 'bfloat16') for inference, and the "
                "config key DTYPE or torch.autocast for training"
            )
        sizes = [(image.shape[-2], image.shape[-1]) for image in images]
        step = max(self.divisibility, 1)
        padded = [images.padded_size] if isinstance(images, PaddedBatchImages) else []
        sides = zip(*sizes, *padded, strict=True)
        height, width = (-(-max(side) // step) * step for side in sides)
        shape = (len(images), self.channels, height, width)
        pixels = torch.zeros(shape, dtype=self.dtype, device=device)
        if self.pixel_mean.stride(2) > 1:  # the weights are channels-last
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        for index, (h, w) in enumerate(sizes):
            pixels[index, :, :h, :w] = self._normalize(images[index])
        return Images(pixels, to_device(torch.tensor(sizes), device))

    def _normalize(self, image: Tensor) -> Tensor:
        is_255 = not image.is_floating_point()
        image = to_device(image, self.pixel_mean.device).to(self.dtype)
        if is_255 != self.bgr255:
            image = image * 255 if self.bgr255 else image / 255
        if self.bgr255 and self.channels == 3:
            image = image.flip(0)
        return (image - self.pixel_mean[0]) / self.pixel_std[0]


def prepare_targets(
    targets: Sequence[dict[str, Any]] | None,
    images: Sequence[Tensor],
    num_classes: int,
    required: Sequence[str] = (),
    soft_masks: bool = False,
    dtype: torch.dtype = torch.float32,
) -> GroundTruth:
    """Check the targets of `DetectionModel.forward` and pad them to one length.

    With `soft_masks`, masks are trained on averaged bitmaps, so polygons are rejected.

    Returns:
        Ground truth [B, G] on the CPU with the `required` fields, and the own fields that the
        targets have; G is at least 2, because torch.compile compiles for a length of 1 separately.
    """
    if targets is None:
        raise ValueError("training needs targets: model(images, targets)")
    if len(targets) != len(images):
        raise ValueError(f"there are {len(images)} images, but {len(targets)} targets")
    checked = [
        check_target(f"targets[{index}]", target, image, num_classes, required, soft_masks)
        for index, (target, image) in enumerate(zip(targets, images, strict=True))
    ]
    counts = [target["keypoints"].shape[1] for target in checked if "keypoints" in required]
    for index, count in enumerate(counts):
        if count != counts[0]:
            raise ValueError(
                f"targets[{index}]['keypoints'] has {count} keypoints per instance, but "
                f"targets[0] has {counts[0]}"
            )
    own = target_fields(checked[0])
    for index, target in enumerate(checked):
        if differ := sorted(own.keys() ^ target_fields(target).keys()):
            raise ValueError(f"only one of targets[0] and targets[{index}] has {differ[0]!r}")
    length = max(2, *(len(target["labels"]) for target in checked))

    def pad(name: str, dtype: torch.dtype, length: int = length) -> Tensor:
        return _stack([target[name].to("cpu", dtype) for target in checked], length)

    regions = max(len(target["ignored_boxes"]) for target in checked)
    has_masks, has_keypoints = "masks" in required, "keypoints" in required
    return GroundTruth(
        pad("boxes", dtype),
        pad("labels", torch.int64),
        PackedMasks.collate([t["masks"] for t in checked], length) if has_masks else None,
        pad("keypoints", dtype) if has_keypoints else None,
        pad("ignored_boxes", dtype, regions) if regions else None,
        {name: pad(name, field.dtype) for name, field in own.items()},
    )


def prepare_proposals(
    proposals: Sequence[Tensor | None] | None, count: int, dtype: torch.dtype = torch.float32
) -> Proposals:
    """Check the proposals, xyxy float [P_i, 4], of `count` images and pad them to one length.

    Returns:
        Proposals [B, P] on the CPU with P at least 1 and scores 0. Empty boxes, which resizing
        may have produced, are dropped.
    """
    if proposals is None:
        raise ValueError(
            "the model has no RPN and needs proposals: `proposals` in each target, or "
            "model.detect(images, proposals)"
        )
    if len(proposals) != count:
        raise ValueError(f"there are {count} images, but proposals for {len(proposals)}")
    checked = []
    for index, image_proposals in enumerate(proposals):
        boxes = check_boxes(f"proposals of image {index}", image_proposals, "P").to("cpu", dtype)
        if not boxes.isfinite().all():
            raise ValueError(f"proposals of image {index} must be finite")
        checked.append(boxes[box_ops.has_min_size(boxes, 0)])
    length = max(1, *map(len, checked))
    valid = torch.arange(length) < torch.tensor([[len(boxes)] for boxes in checked])
    return Proposals(_stack(checked, length), torch.zeros(valid.shape, dtype=dtype), valid)


def _stack(values: Sequence[Tensor], length: int) -> Tensor:
    """Stack tensors [N_i, ...], padded with zeros, to [B, length, ...]."""
    pads = [[0, 0] * (x.ndim - 1) + [0, length - len(x)] for x in values]
    return torch.stack([F.pad(x, pad) for x, pad in zip(values, pads, strict=True)])


def build_normalizer(cfg: CfgNode) -> Normalizer:
    """Build the normalizer of INPUT and DATALOADER.SIZE_DIVISIBILITY."""
    return Normalizer(
        cfg.INPUT.PIXEL_MEAN,
        cfg.INPUT.PIXEL_STD,
        cfg.INPUT.TO_BGR255,
        cfg.DATALOADER.SIZE_DIVISIBILITY,
        cfg.MODEL.MEMORY_FORMAT == "channels_last",
    )
