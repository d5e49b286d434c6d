"""Detectors by name, from the config."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from yacs.config import CfgNode

from detlite.config import ConfigError
from detlite.registry import Registry

from .layers.conv import quicken_gradients
from .preprocessing import memory_format

if TYPE_CHECKING:
    from .detector import Detector

META_ARCHITECTURES: Registry[Callable[[CfgNode], Detector]] = Registry("detector")


def build_model(cfg: CfgNode) -> Detector:
    """The model that a config describes, with fresh weights, on MODEL.DEVICE.

    Raises:
        ConfigError: a part that is not registered, or parts that do not fit together.
    """
    build = META_ARCHITECTURES.get(cfg.MODEL.META_ARCHITECTURE, "MODEL.META_ARCHITECTURE")
    device = torch_device(cfg.MODEL.DEVICE)
    try:
        model = build(cfg)
    except ConfigError:
        raise
    except ValueError as error:  # a module that was given arguments that do not fit
        raise ConfigError(str(error)) from error
    quicken_gradients(model)
    return model.to(device).to(memory_format=memory_format(cfg))


def torch_device(name: str) -> torch.device:
    """The device called `name`; "auto" is CUDA where there is one, else the CPU.

    Raises:
        ConfigError: a name that torch does not know, or a device that is not there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"MODEL.DEVICE: {name!r} is not a device of torch") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"MODEL.DEVICE is {name!r}, but torch finds {torch.cuda.device_count()} CUDA "
            "devices: use auto or cpu"
        )
    if device.type not in ("cpu", "cuda", "meta") and not _is_there(device):
        raise ConfigError(
            f"MODEL.DEVICE is {name!r}, but this torch sees no {device.type} device: use auto or "
            "cpu, or install a torch that is built for it"
        )
    return device


def _is_there(device: torch.device) -> bool:
    try:
        return bool(torch.get_device_module(device).is_available())
    except (RuntimeError, AttributeError):  # no module, or one that does not tell
        return False
