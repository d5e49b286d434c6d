"""torchvision's NMS of each group, to test the kernels against."""

import torch
from torch import Tensor
from torchvision.ops import nms


def batched_nms(boxes: Tensor, scores: Tensor, idxs: Tensor, threshold: float) -> Tensor:
    """Return the indices kept, by decreasing score, the lower index first among equals."""
    dtype = torch.float64 if boxes.dtype == torch.float64 else torch.float32
    boxes, scores, kept = boxes.to(dtype), scores.to(dtype), torch.zeros_like(idxs).bool()
    for group in idxs.unique():
        (own,) = torch.where(idxs == group)
        kept[own[nms(boxes[own], scores[own], threshold)]] = True
    (index,) = torch.where(kept)
    return index[scores[index].argsort(descending=True, stable=True)]
