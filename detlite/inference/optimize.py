"""Optimize detectors for inference: the same detections in less time."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.detector import unwrap
from detlite.modeling.precision import resolve_dtype
from detlite.modeling.roi_heads.mask_head import MaskHead

from .fusion import NoGraphError, fuse

# Modules of detectors, RPNs and heads that compute on feature maps only.
PARTS = ("backbone", "head", "feature_extractor", "predictor")
DTYPES = ("auto", "float32", "bfloat16", "float16")


def optimize(model: DetectionModel, dtype: str = "auto") -> DetectionModel:
    """Return a faster copy of a detector with the same detections.

    The copy raises a RuntimeError when it is trained, moved, converted or saved as a state dict.

    Norms with fixed statistics are folded into convolutions. ReLUs and residual additions are fused
    with them if torch supports it (oneDNN on CPUs). Weights are converted once. Coordinates and the
    layers that predict scores and box deltas stay float32. A module with code that depends on
    values, or with a layer that has hooks, parametrizations or pruned weights, is not fused and
    runs in mixed precision.

    Args:
        model: the detector; it is not changed. The copy is on the same device.
        dtype: of feature maps and weights: "float32", "bfloat16", "float16", or "auto", which is
            bfloat16 if the device has fast instructions for it and float32 otherwise. For int8, see
            `detlite.apps.export.openvino.to_openvino`.
    """
    model = unwrap(model)
    if dtype not in DTYPES:
        raise ValueError(f"optimize(dtype={dtype!r}): choose one of {', '.join(DTYPES)}")
    name = resolve_dtype(dtype, model.device)
    # deepcopy refuses weights that are computed before each call, by pruning for example.
    computed = [x for m in model.modules() for x in vars(m).values() if isinstance(x, Tensor)]
    memo: dict[int, Any] = {id(x): x.detach().clone() for x in computed}
    optimized = copy.deepcopy(model, memo).eval().requires_grad_(False).float()
    optimized.use_memory_format()
    optimized.static_shapes, optimized.is_optimized = False, True
    torch_dtype = getattr(torch, name)
    levels = len(model.backbone.strides)
    done: dict[nn.Module, nn.Module] = {}  # heads may share a module
    for owner, part_name, part in list(_parts(optimized)):
        if part not in done:
            # A mask is where its logit is above 0, for which half precision is enough.
            scores = part_name in ("head", "predictor") and not isinstance(owner, MaskHead)
            try:
                done[part] = fuse(part, torch_dtype, levels, scores)
            except NoGraphError:
                mixed = torch_dtype != torch.float32
                done[part] = _MixedPrecision(part, torch_dtype, scores) if mixed else part
        setattr(owner, part_name, done[part])
    in_parts = {module for part in done.values() for module in part.modules()}
    others = [m for m in optimized.modules() if m not in in_parts and [*m.parameters(False)]]
    for layer in others:  # of an own detector; parts convert their inputs themselves
        layer.register_forward_pre_hook(lambda _, inputs: tuple(map(_to_float32, inputs)))
    return optimized


def _to_float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


def _parts(owner: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    for name, child in owner.named_children():
        if name in PARTS and [*child.children()]:
            yield owner, name, child
        else:
            yield from _parts(child)


class _MixedPrecision(nn.Module):
    """Runs a module that cannot be fused: in float32 if it scores boxes, else under autocast."""

    def __init__(self, part: nn.Module, dtype: torch.dtype, scores: bool) -> None:
        super().__init__()
        self.part = part
        self.dtype = torch.float32 if scores else dtype
        for name in ("out_channels", "out_resolution", "strides", "pooled"):
            if hasattr(part, name):
                setattr(self, name, getattr(part, name))

    def forward(self, x: Tensor | list[Tensor], *args: Tensor) -> Any:
        maps = _cast(x, torch.float32)
        device = (maps if isinstance(maps, Tensor) else maps[0]).device.type
        with torch.autocast(device, self.dtype, enabled=self.dtype != torch.float32):
            result = self.part(maps, *args)
        # Some norms return float32 under autocast.
        return _cast(result, self.dtype) if isinstance(result, list) else result


def _cast(maps: Tensor | Sequence[Tensor], dtype: torch.dtype) -> Any:
    """Convert a batch or a list of levels to `dtype`."""
    return maps.to(dtype) if isinstance(maps, Tensor) else [x.to(dtype) for x in maps]
