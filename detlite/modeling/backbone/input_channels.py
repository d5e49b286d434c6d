"""Backbones for images of other than three channels.

Shapes: O filters of k x k weights.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def adapt_stem(weight: Tensor, channels: int) -> Tensor:
    """Return the weight [O, channels, k, k] of a first convolution for RGB images, [O, 3, k, k].

    For one channel the filters are summed, so that a gray image has the same response. Otherwise
    they are repeated in order and scaled by 3 / channels (as timm's `adapt_input_conv`).
    """
    if channels == 1:
        return weight.sum(dim=1, keepdim=True)
    return weight[:, torch.arange(channels) % 3] * (3 / channels)


def set_input_channels(body: nn.Module, channels: int) -> None:
    """Adapt the convolutions that read RGB images to `channels`, and make them trainable."""
    stems = [m for m in body.modules() if isinstance(m, nn.Conv2d) and m.in_channels == 3]
    if not stems or any(conv.groups > 1 for conv in stems):
        raise ValueError(
            f"INPUT.PIXEL_MEAN has {channels} values, but MODEL.BACKBONE.CONV_BODY has no "
            "convolution of three channels that can be adapted: use another backbone, or three "
            "channels"
        )
    for conv in stems:
        conv.weight = nn.Parameter(adapt_stem(conv.weight.detach(), channels))
        conv.in_channels = channels


def adapt_stems(
    source: Mapping[str, Tensor], target: Mapping[str, Tensor], bgr: bool
) -> dict[str, Tensor]:
    """Return the first-convolution weights of `source`, adapted to the channels of `target`.

    Weights that already fit are not returned. `bgr`: the weights of `source` expect BGR images.
    """
    return {
        name: adapt_stem(weight.flip(1) if bgr else weight, target[name].shape[1])
        for name, weight in source.items()
        if name.startswith("backbone.") and name in target and weight.ndim == 4
        and weight.shape[1] == 3 != target[name].shape[1]
        and weight.shape[2:] == target[name].shape[2:]
    }  # fmt: skip
