"""The whole model against torchvision's Mask R-CNN with the same weights.

torchvision's dialect: anchors centred on the cell's corner and rounded (so their sides are whole
and even here), ROIAlign without the half-pixel shift, RGB in 0..1, smooth L1 with beta 1/9, masks
trained on averages.
"""

import math

import pytest
import torch
from torch import nn

from benchmarks.models.torchvision_baseline import (
    comparable_config,
    spread_scores,
    torchvision_model,
)
from detlite.conversion.convert import SOURCES
from detlite.modeling.build import build_model
from detlite.modeling.layers.norm import FrozenBatchNorm2d

# height, width: multiples of 64, so that torchvision finds strides of 4 to 64 on every level
SIZE = (64, 128)
OPTS = [
    "MODEL.DEVICE", "cpu", "MODEL.BACKBONE.FREEZE_CONV_BODY_AT", 0,
    "INPUT.MIN_SIZE_TEST", min(SIZE), "INPUT.MAX_SIZE_TEST", max(SIZE),
    "MODEL.CONVENTION", "detlite",
    "MODEL.CONVENTION_OVERRIDE", ("anchor_offset=0", "mask_targets=soft"),
    "MODEL.RPN.ANCHOR_SIZES", (8, 16, 32, 64, 128), "MODEL.RPN.ASPECT_RATIOS", (0.25, 1.0, 4.0),
    "MODEL.RPN.PRE_NMS_TOP_N_TRAIN", 200, "MODEL.RPN.PRE_NMS_TOP_N_TEST", 200,
    "MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN", 100, "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST", 100,
    "MODEL.RPN.BATCH_SIZE_PER_IMAGE", 10**6, "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", 10**6,
    "MODEL.ROI_HEADS.POSITIVE_FRACTION", 0.5, "MODEL.ROI_HEADS.DETECTIONS_PER_IMG", 30,
    "MODEL.ROI_BOX_HEAD.NUM_CLASSES", 4,
]  # fmt: skip


def make_images() -> list[torch.Tensor]:
    """Return two images with coarse and fine structure."""
    noise = torch.Generator().manual_seed(0)
    coarse = torch.rand(2, 3, 6, 12, generator=noise)
    coarse = nn.functional.interpolate(coarse, SIZE, mode="bicubic").clamp(0, 1)
    return [*(0.7 * coarse + 0.3 * torch.rand(2, 3, *SIZE, generator=noise))]


@pytest.fixture(scope="module", params=[18, pytest.param(50, marks=pytest.mark.slow)])
def models(request):
    torch.manual_seed(0)
    body = ["MODEL.BACKBONE.CONV_BODY", f"R-{request.param}-FPN"]
    cfg = comparable_config("coco/mask_rcnn_R_50_FPN_1x.yaml", [*body, *OPTS])
    model = build_model(cfg).eval()
    # Batch statistics that keep activations near one, and predictions that differ over the image.
    for module in model.modules():
        if isinstance(module, FrozenBatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(1.0, 3.0)
            module.bias.normal_(std=0.1)
    heads = model.roi_heads
    for layer, std in (
        (model.rpn.head.conv, 0.05), (model.rpn.head.cls_logits, 0.3),
        (model.rpn.head.bbox_pred, 0.03), (heads.box.predictor.cls_score, 0.3),
        (heads.box.predictor.bbox_pred, 0.1), (heads.mask.predictor.mask_fcn_logits, 0.5),
    ):  # fmt: skip
        nn.init.normal_(layer.weight, std=std)
    spread_scores(model, make_images()[0], 0.4, 100)
    return model, torchvision_model(cfg, model)


@pytest.mark.slow
@torch.no_grad()
def test_detections_match_torchvision(models):
    images = make_images()
    ours, reference = (model.eval() for model in models)
    batch, _ = reference.transform(images)
    features = reference.backbone(batch.tensors)
    for level, other in zip(
        ours.backbone(ours.normalizer(images).pixels), features.values(), strict=True
    ):
        torch.testing.assert_close(level, other, rtol=1e-3, atol=1e-3 * other.abs().max().item())
    proposals, _ = reference.rpn(batch, features)
    # only their heads: the masks before pasting, which differs between the libraries
    detections, _ = reference.roi_heads(features, proposals, batch.image_sizes)
    for result, other in zip(ours.detect(images), detections, strict=True):
        assert len(other["boxes"]) >= 20
        assert len(other["labels"].unique()) > 1
        assert torch.equal(result.labels, other["labels"])
        torch.testing.assert_close(result.scores, other["scores"], atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(result.boxes, other["boxes"], atol=1e-2, rtol=1e-3)
        torch.testing.assert_close(result.mask_probs, other["masks"][:, 0], atol=2e-3, rtol=1e-3)
        assert other["masks"].std() > 0.05
    for result, other in zip(ours(images), reference(images), strict=True):  # the same interface
        kinds = ({k: (v.dtype, v.shape[1:]) for k, v in one.items()} for one in (result, other))
        assert next(kinds) == next(kinds)


TRAINING_LOSSES = {
    "loss_objectness": "loss_objectness",
    "loss_rpn_box": "loss_rpn_box_reg",
    "loss_classifier": "loss_classifier",
    "loss_box": "loss_box_reg",
    "loss_mask": "loss_mask",
}


def ground_truth() -> list[dict[str, torch.Tensor]]:
    """Return targets with three objects in the first image and one in the second."""
    targets = []
    for boxes in ([[4.0, 6, 40, 50], [60, 10, 120, 60], [10, 30, 26, 44]], [[30.0, 5, 90, 60]]):
        masks = torch.zeros(len(boxes), *SIZE, dtype=torch.uint8)
        for mask, (x1, y1, x2, y2) in zip(masks, boxes, strict=True):
            mask[math.floor(y1) : math.ceil(y2), math.floor(x1) : math.ceil(x2)] = 1
        labels = torch.arange(len(boxes)) % 3 + 1
        targets.append({"boxes": torch.tensor(boxes), "labels": labels, "masks": masks})
    return targets


def check_step(ours, reference, images, targets) -> None:
    """Compare the losses and the gradients of all parameters."""
    result = ours(images, targets)
    other = reference(images, [dict(target) for target in targets])
    assert result.keys() == TRAINING_LOSSES.keys()
    for name, theirs in TRAINING_LOSSES.items():
        torch.testing.assert_close(result[name], other[theirs], rtol=2e-3, atol=1e-5)
    for model, losses in ((ours, result), (reference, other)):
        model.zero_grad()
        sum(losses.values()).backward()
    theirs = dict(reference.named_parameters())
    names = SOURCES["torchvision"].rename({name: name for name in reference.state_dict()})
    for name, parameter in ours.named_parameters():
        expected = theirs[names[name]].grad
        # Relative to the whole tensor, because rounding turns single ReLUs on or off.
        assert (parameter.grad - expected).norm() <= 5e-3 * expected.norm(), name
        assert expected.norm() > 0, name


@pytest.mark.slow
def test_training_step_matches_torchvision(models):
    """Sample every anchor and proposal, so that nothing is random."""
    ours, reference = (model.train() for model in models)
    check_step(ours, reference, make_images(), ground_truth())
