"""Build a model from the config."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from yacs.config import CfgNode

from detlite.config import default_config
from detlite.errors import ConfigError
from detlite.registry import Registry

from .detection_model import DetectionModel

_FREEZE_AT = default_config().MODEL.BACKBONE.FREEZE_CONV_BODY_AT
_NEW = {
    torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.arange,
    torch.linspace, torch.eye,
}  # fmt: skip
META_ARCHITECTURES: Registry[Callable[[CfgNode], DetectionModel]] = Registry("detector")


def build_model(cfg: CfgNode, file_bytes: int | None = None) -> DetectionModel:
    """Build the model of MODEL.META_ARCHITECTURE with random weights, on MODEL.DEVICE.

    Args:
        cfg: the config.
        file_bytes: size of the file of weights that contains the config; None: it has another
            origin. A config in a file can describe a model that fills the memory.

    Raises:
        ConfigError: a part that is not registered, parts that do not fit together, or a model that
            is much larger than the file.
    """
    build = META_ARCHITECTURES.get(cfg.MODEL.META_ARCHITECTURE, "MODEL.META_ARCHITECTURE")
    device = torch_device(cfg.MODEL.DEVICE)
    try:
        with nullcontext() if file_bytes is None else AllocationLimit(file_bytes):
            model = build(cfg)
    except ConfigError:
        raise
    except ValueError as error:  # a module rejected its arguments
        raise ConfigError(str(error)) from error
    _check_ignored_keys(cfg, model)
    model.extra_outputs = tuple(cfg.TEST.EXTRA_OUTPUTS)
    return model.to(device)


def _check_ignored_keys(cfg: CfgNode, model: DetectionModel) -> None:
    """Raise a ConfigError if a detector or backbone, such as a user's own, ignores a set key."""
    kind, freeze_at = type(model).__name__, cfg.MODEL.BACKBONE.FREEZE_CONV_BODY_AT
    outputs = [name for name in cfg.TEST.EXTRA_OUTPUTS if name not in model.supported_outputs]
    trained = all(parameter.requires_grad for parameter in model.backbone.body.parameters())
    for key, is_ignored, remedy in (
        ("MODEL.MASK_ON", cfg.MODEL.MASK_ON and "masks" not in model.required_targets,
         f"add masks to {kind}.required_targets"),
        ("MODEL.KEYPOINT_ON", cfg.MODEL.KEYPOINT_ON and "keypoints" not in model.required_targets,
         f"add keypoints to {kind}.required_targets"),
        ("MODEL.LOAD_PROPOSALS", cfg.MODEL.LOAD_PROPOSALS and not model.takes_proposals,
         f"set {kind}.takes_proposals"),
        ("TEST.EXTRA_OUTPUTS", outputs, f"add {outputs} to {kind}.supported_outputs"),
        # The default freezes nothing of a backbone that does not know the key.
        ("MODEL.BACKBONE.FREEZE_CONV_BODY_AT", freeze_at not in (0, _FREEZE_AT) and trained,
         "freeze parameters of the body"),
    ):  # fmt: skip
        if is_ignored:
            body, detector = cfg.MODEL.BACKBONE.CONV_BODY, cfg.MODEL.META_ARCHITECTURE
            part = f"the backbone {body}" if "FREEZE" in key else f"the detector {detector}"
            raise ConfigError(
                f"{key} is set, but {part} ignores it: remove it, or implement it and {remedy}"
            )


class AllocationLimit(TorchFunctionMode):
    """Raise a ConfigError before new tensors need much more memory than a file of weights has.

    A stored config of some hundred bytes can describe a model of any size.

    Args:
        file_bytes: size of the file with the weights of the model.
    """

    def __init__(self, file_bytes: int) -> None:
        super().__init__()
        self._file_bytes = file_bytes
        # The file may have weights of half the precision, and initialization needs memory.
        self._left: float = 4 * file_bytes + (1 << 26)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _NEW:
            try:  # a tensor on "meta" has only a size
                size = func(*args, **{**(kwargs or {}), "device": "meta"}).nbytes
            except RuntimeError:  # more bytes than numbers of 64 bits
                size = math.inf
            self._left -= size + (1 << 14)  # Python's objects around it
            if self._left < 0:
                raise ConfigError(
                    "the config describes a model that is much larger than its weights, whose file "
                    f"has {self._file_bytes} bytes"
                )
        return func(*args, **(kwargs or {}))


def torch_device(name: str) -> torch.device:
    """Return the device of a name; "auto" is CUDA if available, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, ImportError) as error:  # depends on the type of device
        raise ConfigError(
            f"MODEL.DEVICE is {name!r}, which torch cannot use here: use auto or cpu, or install a "
            "torch that is built for this device"
        ) from error
    return torch.device(name)
