"""The compiled operators: RoIAlign and RoIPool on one map or a pyramid, non-maximum suppression,
matching of boxes, the focal loss, the encoding of pasted masks, the cropping of true ones,
keypoints from heat maps, and what an evaluation counts.

The functions that torchvision has too take its arguments in its order. The kernels beneath them are
also reached as `torch.ops.detlite.<name>` and `detlite._C.<name>`. On devices that they are not
compiled for, `plain/` stands in.
"""

# Loads the kernels before operators are declared on them.
from . import kernels as kernels  # isort: split

from .evaluation import mask_intersections, match_detections
from .fallback import has_kernels
from .focal_loss import sigmoid_focal_loss
from .masks import crop_masks, heatmap_peaks, paste_masks
from .overlaps import batched_nms, match_boxes, nms, padded_nms
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
    "mask_intersections",
    "match_boxes",
    "match_detections",
    "nms",
    "padded_nms",
    "paste_masks",
    "pyramid_roi_align",
    "pyramid_roi_pool",
    "roi_align",
    "roi_pool",
    "sigmoid_focal_loss",
]
