"""Check each operator on small inputs with known results."""

from collections.abc import Callable

import torch
from torch import Tensor

from detlite import ops
from detlite.structures import boxes as box_ops
from detlite.structures.masks.packed import PackedMasks

Check = Callable[[str], tuple[object, object]]  # device -> actual and expected result


def operator_errors(device: str) -> dict[str, str]:
    """Return an error message for each operator on a device; "" if the operator is correct."""
    return {check.__name__[1:]: _error(check, device) for check in _CHECKS}


def _error(check: Check, device: str) -> str:
    try:
        actual, expected = check(device)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4, check_device=False)
    except (AssertionError, RuntimeError, NotImplementedError) as error:
        return str(error).strip().splitlines()[0]
    return ""


def _ramp(device: str) -> Tensor:
    """Return a map [1, 3, 24, 32] of the values column + 32 * row, times 1, 2 and -1."""
    plane = torch.arange(24.0 * 32).view(24, 32)
    return (plane * torch.tensor([1.0, 2.0, -1.0])[:, None, None])[None].to(device)


_ROIS = torch.tensor([[0.0, 4.0, 3.0, 20.0, 19.0], [0.0, 8.5, 6.25, 11.5, 12.25]])


def _roi_align(device: str) -> tuple[object, object]:
    # A plane averaged over a bin equals its value at the center of the bin.
    x1, y1, x2, y2 = _ROIS[:, 1:].T
    steps = (torch.arange(4) + 0.5) / 4
    x = x1[:, None] + (x2 - x1)[:, None] * steps - 0.5
    y = y1[:, None] + (y2 - y1)[:, None] * steps - 0.5
    plane = x[:, None, :] + 32 * y[:, :, None]
    expected = plane[:, None] * torch.tensor([1.0, 2.0, -1.0])[:, None, None]
    return ops.roi_align(_ramp(device), _ROIS.to(device), 4, 1.0, 2, True), expected


def _roi_align_gradient(device: str) -> tuple[object, object]:
    # The gradient of each bin is distributed over the map without loss.
    features = _ramp(device).requires_grad_()
    pooled = ops.roi_align(features, _ROIS.to(device), 4, 1.0, 2, True)
    (gradient,) = torch.autograd.grad(pooled.sum(), features)
    return gradient.sum((0, 2, 3)), torch.full((3,), 16.0 * len(_ROIS))


def _roi_pool(device: str) -> tuple[object, object]:
    # The maximum of a bin is in its last cell, or in its first if values decrease.
    rois = torch.tensor([[0.0, 2.0, 4.0, 17.0, 11.0]])  # 16 x 8 cells
    rows, columns = 4 + 2 * torch.arange(4), 2 + 4 * torch.arange(4)
    last = (columns + 3) + 32 * (rows + 1)[:, None]
    first = columns + 32 * rows[:, None]
    expected = torch.stack([last, 2 * last, -first])[None].float()
    return ops.roi_pool(_ramp(device), rois.to(device), 4, 1.0), expected


def _boxes(device: str, groups: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Return 200 boxes, their scores, and the group of each."""
    random = torch.Generator().manual_seed(0)
    corner = 60 * torch.rand(200, 2, generator=random)
    sides = 8 + 24 * torch.rand(200, 2, generator=random)
    boxes = torch.cat([corner, corner + sides], dim=1).to(device)
    scores = torch.rand(200, generator=random).to(device)
    return boxes, scores, (torch.arange(200) % groups).to(device)


def _kept(groups: int) -> Tensor:
    """Return the indices of the boxes that NMS at IoU 0.4 within each group keeps."""
    boxes, scores, group = _boxes("cpu", groups)
    overlaps = box_ops.iou(boxes, boxes) * (group[:, None] == group)
    remaining, kept = scores.argsort(descending=True).tolist(), []
    while remaining:
        kept.append(remaining.pop(0))
        remaining = [index for index in remaining if overlaps[kept[-1], index] <= 0.4]
    return torch.tensor(kept)


def _nms(device: str) -> tuple[object, object]:
    boxes, scores, _ = _boxes(device)
    return ops.nms(boxes, scores, 0.4), _kept(groups=1)


def _batched_nms(device: str) -> tuple[object, object]:
    return ops.batched_nms(*_boxes(device, groups=3), 0.4), _kept(groups=3)


def _padded_nms(device: str) -> tuple[object, object]:
    boxes, scores, groups = (values[None] for values in _boxes(device, groups=3))
    valid = torch.ones(1, 200, dtype=torch.bool, device=device)
    index, kept = ops.padded_nms(boxes, scores, groups, valid, 0.4, 20)
    return (index[0], kept[0]), (_kept(groups=3)[:20], torch.ones(20, dtype=torch.bool))


def _match_boxes(device: str) -> tuple[object, object]:
    truth, candidates = _boxes("cpu")[0].split([9, 191])
    overlaps = box_ops.iou(truth, candidates)
    best, index = overlaps.max(dim=0)
    highest = overlaps.max(dim=1, keepdim=True).values
    is_best = ((overlaps == highest) & (overlaps > 0)).any(dim=0)
    valid = torch.ones(1, 9, dtype=torch.bool)
    matches = ops.match_boxes(truth[None].to(device), valid.to(device), candidates.to(device))
    return tuple(x[0] for x in matches), (index, best, is_best)


def _sigmoid_focal_loss(device: str) -> tuple[object, object]:
    logits, targets = torch.linspace(-6, 6, 40), torch.arange(40) % 2
    p = torch.where(targets == 1, logits.sigmoid(), 1 - logits.sigmoid())
    weight = torch.where(targets == 1, 0.25, 0.75)
    expected = -weight * (1 - p) ** 2 * p.log()
    return ops.sigmoid_focal_loss(logits.to(device), targets.to(device)), expected


def _crop_masks(device: str) -> tuple[object, object]:
    # The mask covers the left half of the box.
    ring = [[2.0, 2.0, 10.0, 2.0, 10.0, 18.0, 2.0, 18.0]]
    masks = PackedMasks.from_segmentations([ring], 24, 32, as_rle=False).to(device)
    box = torch.tensor([[2.0, 2.0, 18.0, 18.0]])
    index = torch.zeros(1, dtype=torch.int64)
    expected = torch.zeros(1, 8, 8)
    expected[:, :, :4] = 1
    crops = ops.crop_masks(*masks.tensors(), index.to(device), box.to(device), 8, soft=False)
    return crops, expected


def _heatmap_peaks(device: str) -> tuple[object, object]:
    maps = torch.zeros(1, 1, 8, 8)
    maps[0, 0, 2, 5] = 10
    box = torch.tensor([[10.0, 20.0, 18.0, 28.0]])  # one cell per pixel
    points, scores = ops.heatmap_peaks(maps.to(device), box.to(device))
    return (points[0, 0, :2], scores[0]), (torch.tensor([15.5, 22.5]), torch.tensor([10.0]))


def _paste_masks(device: str) -> tuple[object, object]:
    box = torch.tensor([[3.0, 4.0, 11.0, 10.0]])
    (mask,) = ops.paste_masks(torch.ones(1, 28, 28, device=device), box.to(device), (24, 32))
    masks = PackedMasks.from_segmentations([mask], 24, 32, as_rle=True)
    expected = torch.zeros(24, 32, dtype=torch.bool)
    expected[4:10, 3:11] = True
    return masks.bitmaps(24, 32)[0].bool(), expected


_CHECKS = (
    _roi_align, _roi_align_gradient, _roi_pool, _nms, _batched_nms, _padded_nms, _match_boxes,
    _sigmoid_focal_loss, _crop_masks, _heatmap_peaks, _paste_masks,
)  # fmt: skip
