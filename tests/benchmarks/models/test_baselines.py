"""torchvision's detector has the weights, losses and detections of detlite's."""

from unittest.mock import patch

import pytest
import torch

from benchmarks.models.images import generate_images, to_torchvision_batch, training_batch
from benchmarks.models.inference import Inference
from benchmarks.models.torchvision_baseline import (
    comparable_config,
    seeded_model,
    spread_scores,
    torchvision_model,
)
from detlite.config import ConfigError


@pytest.mark.parametrize("norm", ["FrozenBN", "BN", "GN"])
def test_equal_losses(config, small, norm):
    # Both select the first samples instead of random ones.
    opts = ("MODEL.DEVICE", "cpu", "MODEL.RESNETS.NORM", norm, "MODEL.MEMORY_FORMAT", "contiguous")
    cfg = comparable_config(config, (*small, *opts))
    model = seeded_model(cfg).train()
    baseline = torchvision_model(cfg, model).train()
    batch = training_batch(2, 128, 160, 3, cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES)
    with (
        patch.object(torch, "randperm", lambda n, **_: torch.arange(n)),
        patch.object(torch, "rand", lambda s, **_: torch.linspace(1, 0, s[-1]).expand(s)),
    ):
        losses, expected = model(*batch), baseline(*to_torchvision_batch(batch, "cpu"))
    assert len(losses) == len(expected)
    torch.testing.assert_close(sum(losses.values()), sum(expected.values()), rtol=1e-3, atol=1e-4)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert trained == sum(p.numel() for p in baseline.parameters() if p.requires_grad)


def test_equal_numbers_of_detections(config, small):
    inference = Inference(config, (*small, "MODEL.DEVICE", "cpu"), size=(128, 160), detections=5)
    masks = inference.call("detlite", "float32")()[0]["masks"]
    assert len(masks) == len(inference.call("torchvision", "float32")()[0]) == 5


def test_requested_number_of_boxes_passes_the_threshold(config, small):
    model = seeded_model(comparable_config(config, (*small, "MODEL.DEVICE", "cpu"))).eval()
    (image,) = generate_images(1, 128, 160)
    spread_scores(model, image, 0.5, 20)
    outputs = []
    layer = model.roi_heads.box.predictor.cls_score
    hook = layer.register_forward_hook(lambda _, __, logits: outputs.append(logits))
    model.detect([image])
    hook.remove()
    assert 20 <= (outputs[0].softmax(dim=1)[:, 1:] > 0.5).sum() <= 25


@pytest.mark.parametrize(
    "opts", [("MODEL.MASK_ON", False), ("MODEL.BACKBONE.CONV_BODY", "R-50-C4")]
)
def test_models_that_torchvision_cannot_build(config, opts):
    with pytest.raises(ConfigError, match="with torchvision, which only has"):
        comparable_config(config, opts)
