"""What RoIAlign and RoIPool share: how boxes become RoIs, in what precision, and on which level.

The precision contract. Features are float64, float32, float16 or bfloat16, and the pooled features
have their type. Box coordinates are float32 whatever half type the features have (float64 for
float64 features), and sums are taken in that type too. So the operators need no cast inside
autocast, and coordinates never round to half: at 1000 pixels bfloat16 is 4 pixels coarse.

A RoI is `[batch index, x1, y1, x2, y2]`. Batch index -1 is padding: the RoI pools to zeros and
passes no gradient. Any other index outside the batch, or a level that there is not, is an error and
never a read. On the CPU it is a RuntimeError; on CUDA, where looking would stall the stream, the
kernel itself traps, as torch's own indexing does, and the error surfaces at the next
synchronisation. Boxes given as a list, one tensor an image, cannot name a wrong image.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Boxes = Tensor | Sequence[Tensor]
OutputSize = int | Sequence[int]


def as_rois(boxes: Boxes, features: Tensor) -> Tensor:
    """The RoIs that `boxes` names, in the precision that `features` asks for.

    Args:
        boxes: `Tensor[K, 5]` of RoIs, or a list with a `Tensor[L, 4]` of (x1, y1, x2, y2) for
            each image of the batch.
        features: `Tensor[N, C, H, W]`.

    Returns:
        `Tensor[K, 5]`, float32 (float64 for float64 features).

    Raises:
        ValueError: a shape is wrong, or the list is not as long as the batch.
    """
    dtype = torch.float64 if features.dtype == torch.float64 else torch.float32
    if isinstance(boxes, Tensor):
        if boxes.dim() != 2 or boxes.shape[1] != 5:
            raise ValueError(f"boxes must have shape [K, 5], got {list(boxes.shape)}")
        return boxes.to(dtype)
    if len(boxes) != features.shape[0]:
        raise ValueError(
            f"boxes must list one tensor for each of {features.shape[0]} images, got {len(boxes)}"
        )
    if not boxes:
        return features.new_empty((0, 5), dtype=dtype)
    for i, image_boxes in enumerate(boxes):
        if image_boxes.dim() != 2 or image_boxes.shape[1] != 4:
            raise ValueError(f"boxes[{i}] must have shape [L, 4], got {list(image_boxes.shape)}")
    indices = [
        image_boxes.new_full((len(image_boxes), 1), i, dtype=dtype)
        for i, image_boxes in enumerate(boxes)
    ]
    return torch.cat([torch.cat(indices), torch.cat([b.to(dtype) for b in boxes])], dim=1)


def assign_levels(boxes: Tensor, spatial_scales: Sequence[float]) -> Tensor:
    """Which level of a pyramid a box is pooled from: FPN (Lin et al., 2017), equation 1.

    A box of the side of an ImageNet crop, 224, belongs to the level of stride 2^4, one of twice
    the side to the next.

    Args:
        boxes: `Tensor[K, 4]` of (x1, y1, x2, y2).
        spatial_scales: 1 / stride of each level, finest first, each half of the one before.

    Returns:
        int64 `Tensor[K]`: indices into `spatial_scales`; 0 where the area is negative or NaN.

    Raises:
        ValueError: a scale is not a positive number.
    """
    if len(spatial_scales) < 2:
        return on_one_level(boxes)
    for scale in spatial_scales:
        if not 0 < scale < math.inf:
            raise ValueError(f"spatial_scales must be positive, got {scale}")
    finest = round(-math.log2(spatial_scales[0]))
    x1, y1, x2, y2 = boxes.unbind(dim=1)
    side = ((x2 - x1) * (y2 - y1)).sqrt()
    # The small addend is part of the rule's usual implementation: a box of exactly a level's size
    # belongs to it in spite of rounding.
    size = (side / 224).nan_to_num(0.0) + 1e-6
    # frexp is exact where log2 rounds: size = mantissa * 2^exponent, with mantissa in [0.5, 1).
    level = torch.frexp(size).exponent + (4 - finest - 1)
    return level.clamp(0, len(spatial_scales) - 1).long()


def on_one_level(boxes: Tensor) -> Tensor:
    """The levels [K] of `Tensor[K, ...]` boxes where there is one map: all 0."""
    return boxes.new_zeros(boxes.shape[:1], dtype=torch.int64)


def as_pair(output_size: OutputSize) -> tuple[int, int]:
    """(height, width) of the pooled features, from one number or two."""
    if isinstance(output_size, int):
        return output_size, output_size
    if len(output_size) != 2:
        raise ValueError(f"output_size must be one number or two, got {output_size!r}")
    return output_size[0], output_size[1]


def needs_gradient(*maps: Tensor) -> bool:
    """Whether autograd will ask where the maxima were."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in maps)


def is_channels_last(*maps: Tensor) -> bool:
    """Whether channels lie innermost in any of the maps `[N, C, H, W]`: the kernels' own rule."""
    return any(x.shape[1] > 1 and x.stride(1) == 1 and not x.is_contiguous() for x in maps)


def empty_pooled(
    inputs: Sequence[Tensor], shape: Sequence[int], dtype: torch.dtype | None = None
) -> Tensor:
    """An empty 4-dimensional result in the memory format of the maps, for the fake kernels."""
    return torch.empty(
        shape,
        dtype=dtype or inputs[0].dtype,
        device=inputs[0].device,
        memory_format=memory_format(is_channels_last(*inputs)),
    )


def empty_argmax(inputs: Sequence[Tensor], shape: Sequence[int], needed: bool) -> Tensor:
    """Where RoIPool's fake kernels say the maxima were; without elements where nobody asked."""
    if needed:
        return empty_pooled(inputs, shape, torch.int32)
    return inputs[0].new_empty((0,), dtype=torch.int32)


def map_sizes(maps: Sequence[Tensor]) -> tuple[int, int, list[int], list[int]]:
    """Batch size, channels, heights and widths: what a backward kernel must know of the maps."""
    batch_size, channels = maps[0].shape[:2]
    return batch_size, channels, [x.shape[2] for x in maps], [x.shape[3] for x in maps]


def empty_maps(
    like: Tensor, batch_size: int, channels: int, heights: list[int], widths: list[int]
) -> list[Tensor]:
    """Empty gradients of the maps, in the type and memory format of the pooled gradient."""
    return [
        empty_pooled([like], (batch_size, channels, height, width))
        for height, width in zip(heights, widths, strict=True)
    ]


def memory_format(channels_last: bool) -> torch.memory_format:
    """What torch calls the one layout and the other."""
    return torch.channels_last if channels_last else torch.contiguous_format


def in_format_of(grad: Tensor, channels_last: bool) -> Tensor:
    """`grad` in the features' own memory format, so that their gradient comes out in it too."""
    return grad.contiguous(memory_format=memory_format(channels_last))


def read_argmax(maps: Sequence[Tensor], rois: Tensor, levels: Tensor, argmax: Tensor) -> Tensor:
    """The features at the cells that won, 0 where none did.

    Args:
        maps: one `Tensor[N, C, H_l, W_l]` for each level.
        rois: `Tensor[K, 5]`, of which the batch index counts.
        levels: int64 `Tensor[K]`, the index of each RoI's map.
        argmax: int32 `Tensor[K, C, height, width]` of cells row * W_l + column, or -1.
    """
    image = rois[:, 0].long()[:, None, None, None]
    channel = torch.arange(argmax.shape[1], device=argmax.device)[None, :, None, None]
    pooled = maps[0].new_zeros(argmax.shape)
    for level, features in enumerate(maps):
        if features.numel() == 0:
            continue
        width = features.shape[3]
        here = (levels == level)[:, None, None, None] & (argmax >= 0)
        # Padding, of image -1, reads the last image, and what it reads is left out.
        cell = torch.where(here, argmax, 0).long()
        values = features[image, channel, cell // width, cell % width]
        pooled = torch.where(here, values, pooled)
    return pooled
