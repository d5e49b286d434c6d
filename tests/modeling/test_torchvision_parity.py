"""The whole model against torchvision's Mask R-CNN with the same weights.

torchvision's dialect: anchors centred on the cell's corner and rounded (so their sides are whole
and even here), ROIAlign without the half-pixel shift, RGB in 0..1, smooth L1 with beta 1/9, masks
trained on averages.
"""

import math

import pytest
import torch
import torchvision
from torch import nn
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection._utils import BalancedPositiveNegativeSampler
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

from detlite.config import load_config
from detlite.modeling.boxes.sampler import ProposalSampler, Sampler
from detlite.modeling.build import build_model
from detlite.modeling.rcnn import GeneralizedRCNN

# height, width: multiples of 64, so that torchvision finds strides of 4 to 64 on every level
SIZE = (64, 128)
CLASSES = 4
SIZES = ((8,), (16,), (32,), (64,), (128,))
RATIOS = (0.25, 1.0, 4.0)

# Prefixes of our entries and of torchvision's; `{n}` is a number.
NAMES = {
    "backbone.body.stem.conv1.": "backbone.body.conv1.",
    "backbone.body.stem.norm1.": "backbone.body.bn1.",
    "rpn.head.conv.": "rpn.head.conv.0.0.",
    "roi_heads.box.feature_extractor.": "roi_heads.box_head.",
    "roi_heads.box.predictor.": "roi_heads.box_predictor.",
    "roi_heads.mask.predictor.": "roi_heads.mask_predictor.",
    **{f"backbone.body.res{n + 1}.": f"backbone.body.layer{n}." for n in range(1, 5)},
    **{f"backbone.neck.lateral.{n}.0.": f"backbone.fpn.inner_blocks.{n}.0." for n in range(4)},
    **{f"backbone.neck.output.{n}.0.": f"backbone.fpn.layer_blocks.{n}.0." for n in range(4)},
    **{
        f"roi_heads.mask.feature_extractor.convs.{n}.0.": f"roi_heads.mask_head.{n}.0."
        for n in range(4)
    },
}


def torchvision_name(name: str) -> str:
    for ours, theirs in NAMES.items():
        if name.startswith(ours):
            name = theirs + name[len(ours) :]
    return name.replace(".norm", ".bn") if "backbone.body" in name else name


def make_images() -> list[torch.Tensor]:
    """Return two images with coarse and fine structure."""
    noise = torch.Generator().manual_seed(0)
    coarse = torch.rand(2, 3, 6, 12, generator=noise)
    coarse = nn.functional.interpolate(coarse, SIZE, mode="bicubic").clamp(0, 1)
    return [*(0.7 * coarse + 0.3 * torch.rand(2, 3, *SIZE, generator=noise))]


def torchvision_model(depth: int) -> MaskRCNN:
    backbone = resnet_fpn_backbone(
        backbone_name=f"resnet{depth}", weights=None, trainable_layers=5,
        norm_layer=torchvision.ops.FrozenBatchNorm2d,
    )  # fmt: skip
    model = MaskRCNN(
        backbone, CLASSES, min_size=min(SIZE), max_size=max(SIZE),
        rpn_anchor_generator=AnchorGenerator(SIZES, (RATIOS,) * 5),
        rpn_pre_nms_top_n_train=200, rpn_pre_nms_top_n_test=200, rpn_post_nms_top_n_train=100,
        rpn_post_nms_top_n_test=100, rpn_batch_size_per_image=10**6, box_batch_size_per_image=10**6,
        box_positive_fraction=0.5, box_detections_per_img=30,
    )  # fmt: skip
    # Batch statistics that keep activations near one, and predictions that differ over the image.
    for module in model.modules():
        if isinstance(module, torchvision.ops.FrozenBatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(1.0, 3.0)
            module.bias.normal_(std=0.1)
    predictor = model.roi_heads.box_predictor
    for layer, std in (
        (model.rpn.head.conv[0][0], 0.05), (model.rpn.head.cls_logits, 0.3),
        (model.rpn.head.bbox_pred, 0.03), (predictor.cls_score, 0.3), (predictor.bbox_pred, 0.1),
        (model.roi_heads.mask_predictor.mask_fcn_logits, 0.5),
    ):  # fmt: skip
        nn.init.normal_(layer.weight, std=std)
    _balance_classes(model.eval())
    return model


@torch.no_grad()
def _balance_classes(model: MaskRCNN) -> None:
    """Return biases that make the mean logit of every class 0, so that all classes are detected."""
    batch, _ = model.transform(make_images())
    features = model.backbone(batch.tensors)
    proposals, _ = model.rpn(batch, features)
    heads = model.roi_heads
    x = heads.box_head(heads.box_roi_pool(features, proposals, batch.image_sizes))
    scores = heads.box_predictor.cls_score
    scores.bias.copy_(-scores.weight @ x.mean(dim=0))


def our_model(reference: MaskRCNN, depth: int) -> GeneralizedRCNN:
    settings = {
        "DEVICE": "cpu",
        "MASK_ON": True,
        "BACKBONE.CONV_BODY": f"R-{depth}-FPN",
        "BACKBONE.FREEZE_CONV_BODY_AT": 0,
        "RESNETS.STRIDE_IN_1X1": False,
        "RPN.ANCHOR_SIZES": SIZES,
        "RPN.ASPECT_RATIOS": RATIOS,
        "CONVENTION_OVERRIDE": ("anchor_offset=0", "mask_targets=soft"),
        "RPN.STRADDLE_THRESH": -1,
        "RPN.BATCH_SIZE_PER_IMAGE": 10**6,
        "RPN.PRE_NMS_TOP_N_TRAIN": 200,
        "RPN.PRE_NMS_TOP_N_TEST": 200,
        "RPN.FPN_POST_NMS_TOP_N_TRAIN": 100,
        "RPN.FPN_POST_NMS_TOP_N_TEST": 100,
        "RPN.FPN_POST_NMS_PER_BATCH": False,
        "ROI_HEADS.BATCH_SIZE_PER_IMAGE": 10**6,
        "ROI_HEADS.POSITIVE_FRACTION": 0.5,
        "ROI_HEADS.DETECTIONS_PER_IMG": 30,
        "ROI_BOX_HEAD.NUM_CLASSES": CLASSES,
        "ROI_BOX_HEAD.FEATURE_EXTRACTOR": "FPN2MLPFeatureExtractor",
        "ROI_BOX_HEAD.PREDICTOR": "FPNPredictor",
        "ROI_BOX_HEAD.POOLER_RESOLUTION": 7,
        "ROI_BOX_HEAD.POOLER_SAMPLING_RATIO": 2,
        "ROI_BOX_HEAD.SMOOTH_L1_BETA": 1 / 9,
        "ROI_MASK_HEAD.FEATURE_EXTRACTOR": "MaskRCNNFPNFeatureExtractor",
        "ROI_MASK_HEAD.POOLER_SAMPLING_RATIO": 2,
        "ROI_MASK_HEAD.SHARE_BOX_FEATURE_EXTRACTOR": False,
        "ROI_MASK_HEAD.RESOLUTION": 28,
    }
    opts = [item for name, value in settings.items() for item in (f"MODEL.{name}", value)]
    opts += ["INPUT.TO_BGR255", False, "INPUT.PIXEL_MEAN", [0.485, 0.456, 0.406]]
    opts += ["INPUT.PIXEL_STD", [0.229, 0.224, 0.225]]
    model = build_model(load_config(None, opts))
    theirs = reference.state_dict()
    assert len(theirs) == len(model.state_dict())
    model.load_state_dict({name: theirs[torchvision_name(name)] for name in model.state_dict()})
    return model


@pytest.fixture(scope="module", params=[18, pytest.param(50, marks=pytest.mark.slow)])
def models(request):
    torch.manual_seed(0)
    reference = torchvision_model(request.param)
    return our_model(reference, request.param), reference


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
    for name, parameter in ours.named_parameters():
        expected = theirs[torchvision_name(name)].grad
        # Relative to the whole tensor, because rounding turns single ReLUs on or off.
        assert (parameter.grad - expected).norm() <= 5e-3 * expected.norm(), name
        assert expected.norm() > 0, name


def test_training_step_matches_torchvision(models):
    """Sample every anchor and proposal, so that nothing is random."""
    ours, reference = (model.train() for model in models)
    check_step(ours, reference, make_images(), ground_truth())


def test_training_step_on_few_samples_matches_torchvision(models, monkeypatch):
    """Sample few anchors and proposals, the first ones in both models."""
    ours, reference = (model.train() for model in models)
    of_heads = ProposalSampler(32, 0.25, ours.sampler.matcher)
    for part, own in (("rpn", Sampler(64, 0.25)), ("roi_heads", of_heads)):
        theirs = BalancedPositiveNegativeSampler(own.count, own.positive_fraction)
        monkeypatch.setattr(getattr(reference, part), "fg_bg_sampler", theirs)
        monkeypatch.setattr(ours.rpn if part == "rpn" else ours, "sampler", own)

    images, targets = make_images(), ground_truth()

    def falling(shape, device=None):
        return torch.linspace(1, 0, shape[-1], device=device).expand(shape)

    monkeypatch.setattr(torch, "rand", falling)
    monkeypatch.setattr(torch, "randperm", lambda count, device=None: torch.arange(count))
    check_step(ours, reference, images, targets)
