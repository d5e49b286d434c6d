"""Compare each operator on a device with its fallback on the CPU, on small inputs.

The fallbacks use torchvision where it has the operator.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from detlite import ops
from detlite.ops.dispatch import use_fallback_ops
from detlite.structures.masks.packed import PackedMasks

_random = torch.Generator().manual_seed(0)
_CORNERS = 60 * torch.rand(200, 2, generator=_random)
_BOXES = torch.cat([_CORNERS, _CORNERS + 8 + 24 * torch.rand(200, 2, generator=_random)], dim=1)
_SCORES, _GROUPS = torch.rand(200, generator=_random), torch.arange(200) % 3
_FEATURES = torch.rand(1, 3, 24, 32, generator=_random)
_ROIS = torch.tensor([[0.0, 4.0, 3.0, 20.0, 19.0], [0.0, 8.5, 6.25, 11.5, 12.25]])


def operator_errors(device: str) -> dict[str, str]:
    """Return an error message for each operator on a device; "" if the operator is correct."""
    return {name: _error(run, inputs, device) for name, (run, inputs) in _checks().items()}


def print_checks(device: str) -> int:
    """Print the result of each operator on a device; return the number of wrong ones."""
    errors, has_kernels = operator_errors(device), ops.has_kernels(device)
    print(f"\noperators on {device}{'' if has_kernels else ' (fallbacks)'}")
    # On the CPU, fallbacks are what the check compares with.
    passed = "correct" if has_kernels or device != "cpu" else "runs"
    for operator, error in errors.items():
        print(f"  {operator:22} {error or passed}")
    return sum(map(bool, errors.values()))


def _error(run: Callable[..., Any], inputs: tuple[Any, ...], device: str) -> str:
    on_device = pytree.tree_map_only(Tensor, lambda x: x.to(device), inputs)
    try:
        actual = run(*on_device)
        with use_fallback_ops():
            expected = run(*inputs)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4, check_device=False)
    except (AssertionError, RuntimeError, NotImplementedError) as error:
        return str(error).strip().splitlines()[0]
    return ""


def _gradient(features: Tensor, rois: Tensor) -> Tensor:
    """Return the gradient of RoIAlign for its features."""
    features = features.clone().requires_grad_()
    pooled = ops.roi_align(features, rois, 4, 1.0, 2, True)
    return torch.autograd.grad((pooled * pooled.detach()).sum(), features)[0]


def _padded_nms(boxes: Tensor, scores: Tensor, groups: Tensor) -> Tensor:
    valid = torch.ones(1, len(boxes), dtype=torch.bool, device=boxes.device)
    index, kept = ops.padded_nms(boxes[None], scores[None], groups[None], valid, 0.4, 20)
    return index[kept]


def _crop_masks(box: Tensor) -> Tensor:
    index = torch.zeros(1, dtype=torch.int64, device=box.device)
    return ops.crop_masks(*_MASKS.to(box.device).tensors(), index, box, 8, soft=False)


def _paste_masks(box: Tensor) -> Tensor:
    (mask,) = ops.paste_masks(torch.ones(1, 28, 28, device=box.device), box, (24, 32))
    return PackedMasks.from_segmentations([mask], 24, 32, as_rle=True).bitmaps(24, 32)[0].bool()


_MASKS = PackedMasks.from_segmentations([[[2.0, 2, 10, 2, 10, 18, 2, 18]]], 24, 32, as_rle=False)
_LEFT = torch.tensor([[2.0, 2, 18, 18]])  # a box whose left half the mask covers
_PEAK = torch.zeros(1, 1, 8, 8)
_PEAK[0, 0, 2, 5] = 10


def _checks() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Return a function of each operator, and its inputs."""
    valid = torch.ones(1, 9, dtype=torch.bool)
    return {
        "roi_align": (ops.roi_align, (_FEATURES, _ROIS, 4, 1.0, 2, True)),
        "roi_align_gradient": (_gradient, (_FEATURES, _ROIS)),
        "roi_pool": (ops.roi_pool, (_FEATURES, _ROIS, 4, 1.0)),
        "nms": (ops.nms, (_BOXES, _SCORES, 0.4)),
        "batched_nms": (ops.batched_nms, (_BOXES, _SCORES, _GROUPS, 0.4)),
        "padded_nms": (_padded_nms, (_BOXES, _SCORES, _GROUPS)),
        "match_boxes": (ops.match_boxes, (_BOXES[None, :9], valid, _BOXES[9:])),
        "sigmoid_focal_loss": (
            ops.sigmoid_focal_loss, (torch.linspace(-6, 6, 40), torch.arange(40.0) % 2)
        ),
        "crop_masks": (_crop_masks, (_LEFT,)),
        "heatmap_peaks": (ops.heatmap_peaks, (_PEAK, torch.tensor([[10.0, 20, 18, 28]]))),
        "paste_masks": (_paste_masks, (torch.tensor([[3.0, 4, 11, 10]]),)),
    }  # fmt: skip
