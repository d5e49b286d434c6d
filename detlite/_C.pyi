"""The compiled kernels; every name here is the operator `torch.ops.detlite.<name>` itself."""

from torch import Tensor

def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor: ...
def batched_nms(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor: ...
def roi_align_forward(
    input: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool = False,
) -> Tensor: ...
def roi_align_backward(
    grad: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
    sampling_ratio: int,
    aligned: bool = False,
) -> Tensor: ...
def roi_pool_forward(
    input: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    need_argmax: bool = True,
) -> tuple[Tensor, Tensor]: ...
def roi_pool_backward(
    grad: Tensor,
    rois: Tensor,
    argmax: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
) -> Tensor: ...
def pyramid_roi_align_forward(
    inputs: list[Tensor],
    rois: Tensor,
    spatial_scales: list[float],
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
    canonical_size: float,
    canonical_level: int,
) -> Tensor: ...
def pyramid_roi_align_backward(
    grad: Tensor,
    rois: Tensor,
    spatial_scales: list[float],
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    heights: list[int],
    widths: list[int],
    sampling_ratio: int,
    aligned: bool,
    canonical_size: float,
    canonical_level: int,
) -> list[Tensor]: ...
def pyramid_roi_pool_forward(
    inputs: list[Tensor],
    rois: Tensor,
    spatial_scales: list[float],
    pooled_height: int,
    pooled_width: int,
    canonical_size: float,
    canonical_level: int,
    need_argmax: bool,
) -> tuple[Tensor, Tensor]: ...
def pyramid_roi_pool_backward(
    grad: Tensor,
    rois: Tensor,
    argmax: Tensor,
    spatial_scales: list[float],
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    heights: list[int],
    widths: list[int],
    canonical_size: float,
    canonical_level: int,
) -> list[Tensor]: ...
def sigmoid_focal_loss_forward(
    inputs: Tensor, targets: Tensor, alpha: float, gamma: float
) -> Tensor: ...
def sigmoid_focal_loss_backward(
    grad: Tensor, inputs: Tensor, targets: Tensor, alpha: float, gamma: float
) -> Tensor: ...
def paste_masks_rle(
    probs: Tensor, boxes: Tensor, height: int, width: int, threshold: float
) -> tuple[Tensor, Tensor]: ...
