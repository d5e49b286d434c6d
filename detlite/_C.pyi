"""The compiled kernels; every name here is the operator `torch.ops.detlite.<name>` itself.

The operators on RoIs are declared for one map; their overload `maps` takes those of a pyramid.
"""

from torch import Tensor

def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor: ...
def batched_nms(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor: ...
def padded_nms(
    boxes: Tensor, scores: Tensor, groups: Tensor, valid: Tensor, iou_threshold: float, limit: int
) -> tuple[Tensor, Tensor]: ...
def match_boxes(
    truth: Tensor, valid: Tensor, candidates: Tensor
) -> tuple[Tensor, Tensor, Tensor]: ...
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
def sigmoid_focal_loss_forward(
    inputs: Tensor, targets: Tensor, alpha: float, gamma: float
) -> Tensor: ...
def sigmoid_focal_loss_backward(
    grad: Tensor, inputs: Tensor, targets: Tensor, alpha: float, gamma: float
) -> Tensor: ...
def paste_masks_rle(
    probs: Tensor, boxes: Tensor, height: int, width: int, threshold: float
) -> tuple[Tensor, Tensor]: ...
def mask_intersections(
    data: Tensor,
    lengths: Tensor,
    pixels: Tensor,
    index: Tensor,
    other_data: Tensor,
    other_lengths: Tensor,
    other_pixels: Tensor,
    ranges: Tensor,
) -> tuple[Tensor, Tensor, Tensor]: ...
def match_detections(
    overlaps: Tensor,
    groups: Tensor,
    crowd: Tensor,
    ignored: Tensor,
    uncounted: Tensor,
    thresholds: Tensor,
) -> Tensor: ...
def encode_polygons(
    corners: Tensor, polygons: Tensor, masks: Tensor, sizes: Tensor
) -> tuple[Tensor, Tensor]: ...
def box_overlaps(boxes: Tensor, others: Tensor, crowd: Tensor, ranges: Tensor) -> Tensor: ...
def precision_recall(
    outcomes: Tensor,
    scores: Tensor,
    ranks: Tensor,
    ends: Tensor,
    positives: Tensor,
    limits: Tensor,
    recall_thresholds: Tensor,
    max_dets: int,
) -> tuple[Tensor, Tensor]: ...
def crop_masks(
    values: Tensor,
    pieces: Tensor,
    instances: Tensor,
    frames: Tensor,
    index: Tensor,
    boxes: Tensor,
    resolution: int,
    soft: bool,
) -> Tensor: ...
def heatmap_peaks(maps: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]: ...
def read_annotations(text: Tensor, chunk_bytes: int) -> list[Tensor]: ...
