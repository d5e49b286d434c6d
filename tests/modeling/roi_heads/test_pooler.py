import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torchvision.ops import MultiScaleRoIAlign, roi_align, roi_pool

from detlite.conventions import CONVENTIONS
from detlite.modeling.backbone import Backbone
from detlite.modeling.roi_heads.pooler import POOLERS, Pooler, build_pooler
from detlite.ops import assign_levels
from detlite.structures.padding import RowPacking

STRIDES = (4, 8, 16, 32)
KINDS = ["ROIAlign", "ROIAlignV2", "ROIPool"]


def make(kind: str, size: int = 7, strides=STRIDES, sampling_ratio: int = 2) -> Pooler:
    return Pooler(POOLERS.get(kind, ""), size, strides, sampling_ratio, CONVENTIONS["detlite"])


def levels(batch: int = 2) -> list[torch.Tensor]:
    return [torch.randn(batch, 3, 160 // 2**n, 192 // 2**n) for n in range(4)]


def boxes_of_all_sizes() -> list[torch.Tensor]:
    def some(count: int) -> torch.Tensor:
        corner = torch.rand(count, 2) * 100
        side = 2 ** (5 + 4 * torch.rand(count, 1)) * torch.tensor([[1.1, 0.9]])
        return torch.cat([corner, corner + side], dim=1)

    return [some(30), some(9)]


def as_rois(boxes: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([F.pad(own, (1, 0), value=index) for index, own in enumerate(boxes)])


def test_pooled_regions_match_torchvision():
    features, boxes = levels(), boxes_of_all_sizes()
    reference = MultiScaleRoIAlign(["0", "1", "2", "3"], output_size=7, sampling_ratio=2)
    expected = reference({str(n): x for n, x in enumerate(features)}, boxes, [(640, 768)] * 2)
    pooler = make("ROIAlign")
    assert len(assign_levels(torch.cat(boxes), pooler.scales).unique()) == 4
    torch.testing.assert_close(pooler(features, as_rois(boxes)), expected)


@pytest.mark.parametrize(
    ("kind", "reference"),
    [
        ("ROIAlign", lambda x, rois: roi_align(x, rois, 5, 1 / 16, 0)),
        ("ROIAlignV2", lambda x, rois: roi_align(x, rois, 5, 1 / 16, 0, aligned=True)),
        ("ROIPool", lambda x, rois: roi_pool(x, rois, 5, 1 / 16)),
    ],
)
def test_each_pooler_on_a_single_map_matches_torchvision(kind, reference):
    feature, rois = torch.randn(2, 3, 40, 48), as_rois(boxes_of_all_sizes())
    pooler = make(kind, 5, (16,), sampling_ratio=0)
    torch.testing.assert_close(pooler([feature], rois), reference(feature, rois))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strides", [STRIDES, STRIDES[:1]])
def test_padding_pools_to_zeros_without_effect_on_others(kind, strides):
    boxes = torch.stack([boxes_of_all_sizes()[0][:6], torch.full((6, 4), float("nan"))])
    valid = torch.zeros(2, 6, dtype=torch.bool)
    valid[0, [0, 2, 5]] = True
    pooler, features = make(kind, strides=strides), [x.requires_grad_() for x in levels()]
    used = features[: len(strides)]
    padded, pooled = (
        pooler(features, RowPacking(valid, static).rois(boxes)) for static in (True, False)
    )
    assert len(padded) == 12
    assert not padded[~valid.flatten()].any()
    torch.testing.assert_close(padded[valid.flatten()], pooled)
    gradients = [torch.autograd.grad(x.square().sum(), used) for x in (padded, pooled)]
    torch.testing.assert_close(*gradients)


def test_build_pooler(tiny_config):
    prefix = "MODEL.ROI_BOX_HEAD."
    cfg = tiny_config(prefix + "POOLER_TYPE", "ROIPool", prefix + "POOLER_RESOLUTION", 3,
                      prefix + "POOLER_SAMPLING_RATIO", 1)  # fmt: skip
    backbone = Backbone(nn.Identity(), nn.Identity(), 4, strides=(4, 8, 16), pooled=2)
    box = build_pooler(cfg, "ROI_BOX_HEAD", backbone)
    assert (box.resolution, box.scales, box.sampling_ratio) == (3, (0.25, 0.125), 1)
    assert box.pool is POOLERS.get("ROIPool", "")
    assert box.convention == CONVENTIONS["detlite"]
    assert build_pooler(cfg, "ROI_MASK_HEAD", backbone).pool is POOLERS.get("ROIAlign", "")
