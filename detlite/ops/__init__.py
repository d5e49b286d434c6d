"""The compiled operators: RoIAlign, RoIPool and non-maximum suppression, on the CPU and on CUDA.

The functions take torchvision's arguments in torchvision's order. The kernels beneath them are
also reached as `torch.ops.detlite.<name>` and `detlite._C.<name>`.
"""

from .nms import batched_nms, nms
from .roi_align import RoIAlign, roi_align
from .roi_pool import RoIPool, roi_pool

__all__ = ["RoIAlign", "RoIPool", "batched_nms", "nms", "roi_align", "roi_pool"]
