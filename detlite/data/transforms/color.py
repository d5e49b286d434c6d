"""Random changes of color."""

from collections.abc import Callable
from functools import partial

from torch import Tensor
from yacs.config import CfgNode

Color = tuple[float, ...]  # one value in 0..255 per channel


def build_color_jitter(cfg: CfgNode) -> Callable[[Tensor], Tensor] | None:
    """Build the color jitter of INPUT; None if it changes nothing.

    Without three channels only brightness and contrast change, by one factor for all channels.
    """
    amounts = [cfg.INPUT.BRIGHTNESS, cfg.INPUT.CONTRAST, cfg.INPUT.SATURATION, cfg.INPUT.HUE]
    if not any(amounts):
        return None
    from torchvision.transforms import v2

    jitter = v2.ColorJitter(*amounts)
    if len(cfg.INPUT.PIXEL_MEAN) == 3:
        return jitter
    return partial(_as_gray, jitter)


def _as_gray(jitter: Callable[[Tensor], Tensor], image: Tensor) -> Tensor:
    """Change an image [C, H, W] as a gray one whose channels are below each other."""
    return jitter(image.flatten(0, 1)[None]).view_as(image)


def mean_color(cfg: CfgNode) -> Color:
    """Return the color that the model normalizes to 0."""
    mean = cfg.INPUT.PIXEL_MEAN
    if not cfg.INPUT.TO_BGR255:
        return tuple(255 * value for value in mean)
    return tuple(reversed(mean)) if len(mean) == 3 else tuple(mean)
