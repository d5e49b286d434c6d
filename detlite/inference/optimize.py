"""Detectors for inference alone: the same detections in less time."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.proxy import TraceError
from yacs.config import CfgNode

from detlite.apps.export.openvino import to_openvino
from detlite.modeling.detector import Detector
from detlite.modeling.precision import resolve_dtype
from detlite.modeling.roi_heads.mask_head import MaskHead

from .fused_layers import cast
from .fusion import fuse

# Where detectors, their RPNs and heads keep what is arithmetic on maps.
PARTS = ("backbone", "head", "feature_extractor", "predictor")
DTYPES = ("auto", "float32", "bfloat16", "float16", "int8")


def optimize(model: Detector, dtype: str = "auto", calibration: Sequence[Tensor] = ()) -> Detector:
    """A copy of a detector that detects the same faster, and can do nothing else.

    Norms with fixed statistics are folded into convolutions, ReLUs and residual additions fused
    with them where torch can (oneDNN on the CPU), and weights cast once. Coordinates and the layers
    that score and move boxes stay float32. A part whose code depends on values is run as it is, in
    mixed precision. The copy stays on the device of `model`.

    Args:
        model: is left as it is.
        dtype: of maps and weights: "float32", "bfloat16", "float16", or "auto", which is bfloat16
            where the device multiplies it faster and float32 elsewhere. "int8" has OpenVINO run
            the parts, see `to_openvino`.
        calibration: of int8, some dozens of training pictures [3, H, W], resized as in evaluation.

    Raises:
        ValueError: another dtype, or int8 without pictures.
        ConfigError: int8, and its packages are not installed or the model is not on the CPU.
    """
    if dtype == "int8":
        if not calibration:
            raise ValueError(
                "optimize(dtype='int8') needs pictures: calibration=[uint8 [3, H, W], ...]"
            )
        return to_openvino(model, calibration)
    if dtype not in DTYPES:
        raise ValueError(f"optimize(dtype={dtype!r}): choose one of {', '.join(DTYPES)}")
    name = resolve_dtype(dtype, model.device)
    optimized = copy.deepcopy(model).eval().requires_grad_(False).float()
    arithmetic = getattr(torch, name)
    levels = len(model.backbone.strides)
    done: dict[nn.Module, nn.Module] = {}  # heads may share a part
    for owner, part_name, part in list(_parts(optimized)):
        if part not in done:
            # A mask is where its logit is above 0, which half types tell as well as float32.
            scores = part_name in ("head", "predictor") and not isinstance(owner, MaskHead)
            done[part] = _faster(part, arithmetic, levels, scores)
        setattr(owner, part_name, done[part])
    return optimized


def build_inference(cfg: CfgNode, model: Detector) -> tuple[Detector, str]:
    """The model that inference calls by TEST.OPTIMIZE, and what it is to be autocast to."""
    if not cfg.TEST.OPTIMIZE:
        return model, cfg.DTYPE
    return optimize(model, cfg.DTYPE), "float32"


def _parts(owner: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    for name, child in owner.named_children():
        if name in PARTS:
            yield owner, name, child
        else:
            yield from _parts(child)


def _faster(part: nn.Module, dtype: torch.dtype, levels: int, scores: bool) -> nn.Module:
    try:
        return fuse(part, dtype, levels, scores)
    except TraceError:
        return part if dtype == torch.float32 else _InMixedPrecision(part, dtype, scores)


class _InMixedPrecision(nn.Module):
    """A part that cannot be traced: in float32 if it scores boxes, else under autocast."""

    def __init__(self, part: nn.Module, dtype: torch.dtype, scores: bool) -> None:
        super().__init__()
        self.part = part
        self.dtype = torch.float32 if scores else dtype
        for name in ("out_channels", "out_resolution", "strides", "pooled"):
            if hasattr(part, name):
                setattr(self, name, getattr(part, name))

    def forward(self, x: Tensor | list[Tensor], *args: Tensor) -> Any:
        """What the part gives."""
        maps = cast(x, torch.float32)
        device = maps[0].device.type
        with torch.autocast(device, self.dtype, enabled=self.dtype != torch.float32):
            found = self.part(maps, *args)
        # Some norms give float32 whatever they take.
        return cast(found, self.dtype) if isinstance(found, list) else found
