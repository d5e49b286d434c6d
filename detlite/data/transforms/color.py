"""Random changes of color."""

from torchvision.transforms import v2
from yacs.config import CfgNode

Color = tuple[float, float, float]  # RGB in 0..255


def build_color_jitter(cfg: CfgNode) -> v2.ColorJitter | None:
    """Build the color jitter of INPUT; None if it changes nothing."""
    amounts = [cfg.INPUT.BRIGHTNESS, cfg.INPUT.CONTRAST, cfg.INPUT.SATURATION, cfg.INPUT.HUE]
    return v2.ColorJitter(*amounts) if any(amounts) else None


def mean_color(cfg: CfgNode) -> Color:
    """Return the color that the model normalizes to 0."""
    mean = cfg.INPUT.PIXEL_MEAN
    red, green, blue = reversed(mean) if cfg.INPUT.TO_BGR255 else (255 * value for value in mean)
    return red, green, blue
