import math

import pytest
import torch
from torch.nn import functional as F

from detlite import ConfigError, build_model
from detlite.modeling.boxes.class_loss import ClassLoss


def reference(logits, labels, gamma, weights):
    """Sum the loss box by box in float64."""
    total = 0.0
    for row, label in zip(logits.double().tolist(), labels.tolist(), strict=True):
        if label >= 0:
            top = max(row)
            exponentials = [math.exp(value - top) for value in row]
            p = exponentials[label] / sum(exponentials)
            total -= (weights[label] if weights else 1) * (1 - p) ** gamma * math.log(p)
    return total


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0, 3.5])
@pytest.mark.parametrize("weights", [(), (0.3, 1.0, 4.0, 0.0)])
def test_loss_matches_a_loop(gamma, weights, device):
    logits = torch.randn(40, 4) * 3
    labels = torch.randint(-1, 4, (40,))
    loss = ClassLoss(gamma, weights).to(device)(logits.to(device), labels.to(device))
    assert float(loss) == pytest.approx(reference(logits, labels, gamma, weights), rel=1e-4)


def test_default_is_cross_entropy():
    logits, labels = torch.randn(9, 3), torch.randint(-1, 3, (9,))
    expected = F.cross_entropy(logits, labels, reduction="sum", ignore_index=-1)
    assert torch.equal(ClassLoss()(logits, labels), expected)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_gradients_of_certain_and_ignored_boxes_are_finite(gamma):
    logits = torch.tensor([[90.0, 0.0], [0.0, 90.0], [1.0, 2.0]], requires_grad=True)
    ClassLoss(gamma)(logits, torch.tensor([0, 0, -1])).backward()
    assert logits.grad.isfinite().all()
    assert not logits.grad[2].any()


def test_model_trains_with_the_configured_loss(tiny_config, make_batch):
    images, targets = make_batch(2, 1)
    losses = {}
    for loss, weights in (("cross_entropy", ()), ("focal", ()), ("cross_entropy", (1, 0, 0, 0))):
        torch.manual_seed(0)
        model = build_model(
            tiny_config(
                "MODEL.ROI_BOX_HEAD.LOSS", loss, "MODEL.ROI_BOX_HEAD.CLASS_WEIGHTS", weights
            )
        )
        torch.manual_seed(0)
        result = model(images, targets)
        result["loss_classifier"].backward()
        losses[loss, weights] = float(result["loss_classifier"].detach())
    plain, focal, background = losses.values()
    assert 0 < focal < plain  # (1 - p)^2 is below 1
    assert 0 < background < plain


def test_number_of_weights(tiny_config):
    with pytest.raises(ConfigError, match=r"CLASS_WEIGHTS has 2 values, but .*NUM_CLASSES is 4"):
        build_model(tiny_config("MODEL.ROI_BOX_HEAD.CLASS_WEIGHTS", (1.0, 2.0)))
