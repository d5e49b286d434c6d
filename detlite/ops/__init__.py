"""The compiled operators: RoIAlign and RoIPool on one map or a pyramid, non-maximum suppression,
the focal loss, and the encoding of pasted masks.

The functions that torchvision has too take its arguments in its order. The kernels beneath them are
also reached as `torch.ops.detlite.<name>` and `detlite._C.<name>`.
"""

from .focal_loss import sigmoid_focal_loss
from .nms import batched_nms, nms
from .paste_masks import paste_masks
from .pyramid import assign_levels, pyramid_roi_align, pyramid_roi_pool
from .roi_align import RoIAlign, roi_align
from .roi_pool import RoIPool, roi_pool

__all__ = [
    "RoIAlign",
    "RoIPool",
    "assign_levels",
    "batched_nms",
    "nms",
    "paste_masks",
    "pyramid_roi_align",
    "pyramid_roi_pool",
    "roi_align",
    "roi_pool",
    "sigmoid_focal_loss",
]
