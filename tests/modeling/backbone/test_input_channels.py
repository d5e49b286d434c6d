import numpy as np
import pytest
import torch

import detlite
from detlite.checkpoint.contents import Checkpoint
from detlite.checkpoint.loading import load_weights
from detlite.modeling.backbone.input_channels import adapt_stem, set_input_channels
from detlite.modeling.optimize_for_training import optimize_for_training


def model_of(channels, *opts, bgr=False):
    mean, std = [0.4] * channels, [0.5] * channels
    opts = ["INPUT.PIXEL_MEAN", mean, "INPUT.PIXEL_STD", std, "INPUT.TO_BGR255", bgr, *opts]
    return detlite.build_model(
        detlite.load_config("demo_shapes.yaml", ["MODEL.DEVICE", "cpu", *opts])
    ).eval()


def test_a_gray_image_has_the_response_of_its_rgb_form():
    weight, gray = torch.randn(4, 3, 3, 3), torch.rand(1, 1, 8, 8)
    expected = torch.nn.functional.conv2d(gray.expand(-1, 3, -1, -1), weight)
    torch.testing.assert_close(torch.nn.functional.conv2d(gray, adapt_stem(weight, 1)), expected)


def test_filters_repeat_and_keep_the_response_to_a_uniform_image():
    weight = torch.randn(4, 3, 3, 3)
    adapted = adapt_stem(weight, 6)
    torch.testing.assert_close(adapted[:, 3:], weight / 2)
    torch.testing.assert_close(adapted.sum(1), weight.sum(1))


@pytest.mark.parametrize("channels", [1, 2, 4, 7])
@pytest.mark.parametrize("bgr", [False, True])
def test_weights_of_three_channels_are_adapted(channels, bgr):
    rgb, other = model_of(3, bgr=bgr), model_of(channels, bgr=bgr)
    load_weights(other, Checkpoint("weights.pth", rgb.state_dict()))
    stem = (
        rgb.backbone.body.stem.conv1.weight.flip(1) if bgr else rgb.backbone.body.stem.conv1.weight
    )
    assert torch.equal(other.backbone.body.stem.conv1.weight, adapt_stem(stem, channels))
    assert torch.equal(other.rpn.head.conv.weight, rgb.rpn.head.conv.weight)


@pytest.mark.parametrize("channels", [1, 4])
def test_a_model_of_other_channels_trains_and_predicts(channels):
    model = model_of(channels)
    assert model.channels == channels
    image = torch.randint(0, 256, (channels, 64, 96), dtype=torch.uint8)
    target = {"boxes": torch.tensor([[4.0, 4.0, 60.0, 50.0]]), "labels": torch.tensor([1])}
    target["masks"] = torch.ones(1, 64, 96, dtype=torch.uint8)
    optimize_for_training(model)
    losses = model.train()([image], [target])
    sum(losses.values()).backward()
    assert model.backbone.body.stem.conv1.weight.grad.abs().sum() > 0
    with pytest.raises(ValueError, match=rf"images\[0\] must be \[{channels}, H, W\]"):
        model.eval()([torch.zeros(3, 64, 96)])


def test_predictor_reads_the_channels_of_its_model():
    model = model_of(4)
    model.categories = [{"id": k, "name": str(k)} for k in range(1, model.num_classes)]
    predictor = detlite.Predictor(model, 64, 96)
    pixels = np.random.default_rng(0).integers(0, 256, (48, 64, 4), dtype=np.uint8)
    array, tensor = predictor([pixels, torch.from_numpy(pixels).permute(2, 0, 1)])
    torch.testing.assert_close(array["scores"], tensor["scores"])
    with pytest.raises(ValueError, match="the image has 3 channels, but the model expects 4"):
        predictor(pixels[..., :3])


def test_timm_backbones_are_adapted():
    pytest.importorskip("timm")
    model = model_of(5, "MODEL.BACKBONE.CONV_BODY", "timm/mobilenetv3_small_050-FPN")
    detections = model([torch.rand(5, 64, 64)])
    assert len(detections) == 1


def test_a_backbone_without_such_a_convolution_is_refused():
    with pytest.raises(ValueError, match="no convolution of three channels that can be adapted"):
        set_input_channels(torch.nn.Linear(3, 4), 2)
