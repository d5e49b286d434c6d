from __future__ import annotations

import pytest
import torch
from torch import nn
from torchvision.ops import MultiScaleRoIAlign, roi_align, roi_pool

from detlite.config import ConfigError
from detlite.modeling.backbone import Backbone
from detlite.modeling.pooler import POOLERS, Pooler, build_pooler, to_rois
from detlite.modeling.rcnn import build_model
from detlite.ops import assign_levels

SCALES = [1 / 4, 1 / 8, 1 / 16, 1 / 32]


def levels(batch: int = 2) -> list[torch.Tensor]:
    return [torch.randn(batch, 3, 160 // 2**n, 192 // 2**n) for n in range(4)]


def boxes_of_all_sizes() -> list[torch.Tensor]:
    def some(count: int) -> torch.Tensor:
        corner = torch.rand(count, 2) * 100
        side = 2 ** (5 + 4 * torch.rand(count, 1)) * torch.tensor([[1.1, 0.9]])
        return torch.cat([corner, corner + side], dim=1)

    return [some(30), some(9)]


def test_rois_begin_with_the_image():
    rois = to_rois([torch.ones(1, 4), torch.zeros(0, 4), torch.full((2, 4), 7.0)])
    assert rois.tolist() == [[0, 1, 1, 1, 1], [2, 7, 7, 7, 7], [2, 7, 7, 7, 7]]


def test_pooled_regions_are_torchvisions():
    features, boxes = levels(), boxes_of_all_sizes()
    reference = MultiScaleRoIAlign(["0", "1", "2", "3"], output_size=7, sampling_ratio=2)
    wanted = reference({str(n): x for n, x in enumerate(features)}, boxes, [(640, 768)] * 2)
    assert len(assign_levels(torch.cat(boxes), SCALES).unique()) == 4
    ours = Pooler(POOLERS.get("ROIAlign", ""), 7, SCALES, sampling_ratio=2)(features, boxes)
    torch.testing.assert_close(ours, wanted)


@pytest.mark.parametrize(
    ("kind", "reference"),
    [
        ("ROIAlign", lambda x, rois: roi_align(x, rois, 5, 1 / 16, 0)),
        ("ROIAlignV2", lambda x, rois: roi_align(x, rois, 5, 1 / 16, 0, aligned=True)),
        ("ROIPool", lambda x, rois: roi_pool(x, rois, 5, 1 / 16)),
    ],
)
def test_each_type_on_one_map(kind, reference):
    feature, boxes = torch.randn(2, 3, 40, 48), boxes_of_all_sizes()
    pooler = Pooler(POOLERS.get(kind, ""), 5, [1 / 16], sampling_ratio=0)
    torch.testing.assert_close(pooler([feature], boxes), reference(feature, to_rois(boxes)))


@pytest.mark.parametrize("kind", ["ROIAlign", "ROIAlignV2", "ROIPool"])
def test_each_region_is_pooled_as_if_alone(kind):
    features, boxes = levels(), boxes_of_all_sizes()
    pooler = Pooler(POOLERS.get(kind, ""), 7, SCALES, sampling_ratio=2)
    together = pooler(features, boxes)
    none = torch.zeros(0, 4)
    alone = [pooler(features, [box[None], none]) for box in boxes[0]]
    alone += [pooler(features, [none, box[None]]) for box in boxes[1]]
    torch.testing.assert_close(together, torch.cat(alone))


@pytest.mark.parametrize("scales", [SCALES, SCALES[:1]])
def test_no_regions_stay_connected(scales):
    features = [x.requires_grad_() for x in levels()]
    pooled = Pooler(POOLERS.get("ROIAlign", ""), 7, scales, 2)(features, [torch.zeros(0, 4)] * 2)
    assert pooled.shape == (0, 3, 7, 7)
    pooled.sum().backward()
    assert all(x.grad is not None for x in features[: len(scales)])


def test_further_levels_are_not_used():
    features, boxes = levels(), boxes_of_all_sizes()
    pooler = Pooler(POOLERS.get("ROIAlign", ""), 7, SCALES, 2)
    assert torch.equal(
        pooler([*features, torch.full((2, 3, 1, 1), 1e9)], boxes), pooler(features, boxes)
    )


def test_half_precision_features_keep_their_type():
    features = [x.bfloat16() for x in levels()]
    pooled = Pooler(POOLERS.get("ROIAlignV2", ""), 7, SCALES, 2)(features, boxes_of_all_sizes())
    assert pooled.dtype == torch.bfloat16


def test_keys_reach_the_pooler(tiny_config):
    prefix = "MODEL.ROI_BOX_HEAD."
    cfg = tiny_config(prefix + "POOLER_TYPE", "ROIPool", prefix + "POOLER_RESOLUTION", 3,
                      prefix + "POOLER_SAMPLING_RATIO", 1)  # fmt: skip
    backbone = Backbone(nn.Identity(), nn.Identity(), 4, strides=(4, 8, 16), pooled=2)
    box = build_pooler(cfg, "ROI_BOX_HEAD", backbone)
    assert (box.resolution, box.scales, box.sampling_ratio) == (3, (0.25, 0.125), 1)
    assert box.pool is POOLERS.get("ROIPool", "")
    assert build_pooler(cfg, "ROI_MASK_HEAD", backbone).pool is POOLERS.get("ROIAlign", "")


@pytest.mark.parametrize("head", ["ROI_BOX_HEAD", "ROI_MASK_HEAD"])
def test_type_is_swapped_in_the_config_alone(tiny_config, head):
    image = [torch.rand(3, 64, 96)]
    state, outputs = None, []
    for kind in ("ROIAlign", "ROIAlignV2", "ROIPool"):
        model = build_model(tiny_config(f"MODEL.{head}.POOLER_TYPE", kind)).eval()
        state = state or model.state_dict()
        model.load_state_dict(state)
        features = model.backbone(model.normalizer(image).tensor)
        extractor = model.roi_heads.box if head == "ROI_BOX_HEAD" else model.roi_heads.mask
        outputs.append(
            extractor.feature_extractor(features, [torch.tensor([[5.3, 6.1, 50.2, 44.9]])])
        )
    for first, second in ((0, 1), (1, 2), (0, 2)):
        assert not torch.allclose(outputs[first], outputs[second], rtol=1e-3)


@pytest.mark.parametrize("head", ["ROI_BOX_HEAD", "ROI_MASK_HEAD"])
def test_unknown_type_names_the_key(tiny_config, head):
    with pytest.raises(
        ConfigError, match=rf"MODEL\.{head}\.POOLER_TYPE: no pooler is called 'ROIAlignV3'"
    ):
        build_model(tiny_config(f"MODEL.{head}.POOLER_TYPE", "ROIAlignV3"))
