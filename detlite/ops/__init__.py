"""The operators of Mask R-CNN: RoIAlign, RoIPool, NMS, matching, masks, keypoints, focal loss.

Functions that torchvision also has accept its arguments in its order. Each runs a compiled kernel
on the CPU and CUDA, available as `torch.ops.detlite.<name>` and `detlite._C.<name>`. Without a
kernel for the device, or without compiled kernels at all, fallbacks compute the same with
torchvision and PyTorch. An invalid argument raises a RuntimeError that names the operator and the
argument.

Each module shows first the functions that a caller needs, then their operators (`dispatch.py`).
"""

from .dispatch import has_kernels
from .focal_loss import sigmoid_focal_loss
from .keypoints import heatmap_peaks
from .masks import crop_masks, paste_masks
from .matching import match_boxes
from .nms import batched_nms, nms, padded_nms
from .roi_align import RoIAlign, pyramid_roi_align, roi_align
from .roi_pool import RoIPool, pyramid_roi_pool, roi_pool
from .roi_utils import assign_levels

__all__ = [
    "RoIAlign",
    "RoIPool",
    "assign_levels",
    "batched_nms",
    "crop_masks",
    "has_kernels",
    "heatmap_peaks",
    "match_boxes",
    "nms",
    "padded_nms",
    "paste_masks",
    "pyramid_roi_align",
    "pyramid_roi_pool",
    "roi_align",
    "roi_pool",
    "sigmoid_focal_loss",
]
