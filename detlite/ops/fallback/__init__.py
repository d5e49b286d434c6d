"""The operators without compiled kernels, through torchvision and plain PyTorch.

The dispatcher calls them on devices without a kernel of ours (MPS, XPU, CUDA in a build for the
CPU), and everywhere if the kernels are not built. RoIAlign, RoIPool and NMS use torchvision's
operators; a device that has none runs them on the CPU. Shapes and gradients are those of the
kernels, and so are the checks of arguments, except for the contents of integer tensors.

Memory is bounded, but the host waits for the device a few times in each call.
"""

from . import evaluation, focal_loss, keypoints, masks, matching, nms, rois  # noqa: F401
from .dispatch import FALLBACKS, has_kernels, use_fallback_ops

__all__ = ["FALLBACKS", "has_kernels", "use_fallback_ops"]
