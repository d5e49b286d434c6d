"""detectron2's detector has the weights, losses and detections of detlite's.

The tests need a detectron2 that was built from its sources.
"""

from unittest.mock import patch

import pytest
import torch

from benchmarks.models.detectron2_baseline import (
    WithEventStorage,
    detectron2_model,
    to_detectron2_batch,
)
from benchmarks.models.images import generate_images, training_batch
from benchmarks.models.inference import Inference
from benchmarks.models.torchvision_baseline import comparable_config, seeded_model

pytest.importorskip("detectron2", reason="detectron2 is not installed")


def test_equal_weights(config, small):
    cfg = comparable_config(config, (*small, "MODEL.DEVICE", "cpu"))
    model = seeded_model(cfg).eval()
    baseline = detectron2_model(cfg, model).eval()
    image = torch.stack(generate_images(1, 128, 160)).float()
    features = model.backbone((image / 255 - 0.5) / 0.25)
    expected = baseline.backbone((image / 255 - 0.5) / 0.25)
    for level, name in zip(features, ("p2", "p3", "p4", "p5", "p6"), strict=False):
        torch.testing.assert_close(level, expected[name], rtol=1e-4, atol=1e-4)


def test_equal_numbers_of_detections(config, small):
    inference = Inference(config, (*small, "MODEL.DEVICE", "cpu"), size=(128, 160), detections=5)
    masks = inference.call("detlite", "float32")()[0]["masks"]
    expected = inference.call("detectron2", "float32")()[0]
    assert len(masks) == len(expected) == 5


def test_equal_losses(config, small):
    # Both select the first samples instead of random ones.
    opts = ("MODEL.DEVICE", "cpu", "MODEL.MEMORY_FORMAT", "contiguous")
    cfg = comparable_config(config, (*small, *opts))
    model = seeded_model(cfg).train()
    baseline = detectron2_model(cfg, model).train()
    batch = training_batch(2, 128, 160, 3, cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES)
    with (
        patch.object(torch, "randperm", lambda n, **_: torch.arange(n)),
        patch.object(torch, "rand", lambda s, **_: torch.linspace(1, 0, s[-1]).expand(s)),
    ):
        losses = model(*batch)
        expected = WithEventStorage(baseline)(to_detectron2_batch(batch))
    # detectron2 defines the RPN's box loss and the mask targets differently.
    torch.testing.assert_close(
        losses["loss_objectness"], expected["loss_rpn_cls"], rtol=1e-3, atol=0
    )
    assert all(loss.isfinite() for loss in expected.values())
