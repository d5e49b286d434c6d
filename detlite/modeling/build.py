"""Build a model from the config."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from yacs.config import CfgNode

from detlite.config import ConfigError
from detlite.registry import Registry

if TYPE_CHECKING:
    from .detection_model import DetectionModel

META_ARCHITECTURES: Registry[Callable[[CfgNode], DetectionModel]] = Registry("detector")


def build_model(cfg: CfgNode) -> DetectionModel:
    """Build the model of MODEL.META_ARCHITECTURE with random weights, on MODEL.DEVICE.

    Raises:
        ConfigError: a part that is not registered, or parts that do not fit together.
    """
    build = META_ARCHITECTURES.get(cfg.MODEL.META_ARCHITECTURE, "MODEL.META_ARCHITECTURE")
    device = torch_device(cfg.MODEL.DEVICE)
    try:
        model = build(cfg)
    except ConfigError:
        raise
    except ValueError as error:  # a module rejected its arguments
        raise ConfigError(str(error)) from error
    formats = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}
    model.extra_outputs = tuple(cfg.TEST.EXTRA_OUTPUTS)
    return model.to(device).to(memory_format=formats[cfg.MODEL.MEMORY_FORMAT])


def torch_device(name: str) -> torch.device:
    """Return the device of a name; "auto" is CUDA if available, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"MODEL.DEVICE: {name!r} is not a device of torch") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"MODEL.DEVICE is {name!r}, but torch finds {torch.cuda.device_count()} CUDA devices: "
            "use auto or cpu"
        )
    if device.type not in ("cpu", "cuda", "meta") and not _is_available(device):
        raise ConfigError(
            f"MODEL.DEVICE is {name!r}, but this torch finds no {device.type} device: use auto or "
            "cpu, or install a torch that is built for it"
        )
    return device


def reject_roi_heads(cfg: CfgNode) -> None:
    """Raise a ValueError if the config of a model without RoI heads enables them."""
    for key in ("MASK_ON", "KEYPOINT_ON", "LOAD_PROPOSALS"):
        if cfg.MODEL[key]:
            raise ValueError(
                f"MODEL.{key} is True, but a {cfg.MODEL.META_ARCHITECTURE} has no RoI heads: set "
                "it to False"
            )
    if cfg.TEST.BOX_FROM_MASK or cfg.TEST.MASK_CONFIDENCE or "features" in cfg.TEST.EXTRA_OUTPUTS:
        raise ValueError(
            "TEST.BOX_FROM_MASK, TEST.MASK_CONFIDENCE and features in TEST.EXTRA_OUTPUTS need RoI "
            f"heads, which a {cfg.MODEL.META_ARCHITECTURE} does not have: remove them"
        )


def _is_available(device: torch.device) -> bool:
    try:
        return bool(torch.get_device_module(device).is_available())
    except (RuntimeError, AttributeError):  # no such module, or one without is_available
        return False
