"""Data structures of the model: boxes, masks, keypoints and batches of images and records."""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy a tensor to a device, unless it is there.

    The host does not wait for a copy to a GPU. It would wait until the GPU has finished its work if
    the memory were not page-locked.
    """
    if torch.device(device).type != "cuda" or tensor.is_cuda or tensor.requires_grad:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
