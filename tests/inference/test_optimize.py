"""Optimized detectors return the same detections, for all backbones, norms and heads."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune

from detlite import build_model, optimize
from detlite.inference import fused_layers
from detlite.inference.fused_layers import FusedConv2d
from detlite.inference.fusion import NoGraphError, fuse
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.layers.conv import PaddedConv2d
from detlite.modeling.layers.norm import FrozenBatchNorm2d, LevelBatchNorm
from detlite.modeling.optimize_for_training import optimize_for_training
from detlite.modeling.retinanet import RetinaNet
from detlite.structures.instances import Detections
from tests.modeling.family import VARIANTS, assert_same_objects, family_config, spread_scores

# Those with other layers or other code in the parts that are fused.
MODELS = [
    "c4", "keypoint", "cascade", "fast", "retinanet", "retinanet-torchvision", "proposals",
    *(name for name in VARIANTS
      if name not in ("R-34", "64 groups", "SyncBN, convolutions", "ROIAlign", "boxes only")),
]  # fmt: skip
# Those whose parts in float32 begin elsewhere.
IN_HALF = ["c4", "keypoint", "cascade", "retinanet", "proposals", "deformable", "group norm"]


@pytest.fixture(params=MODELS)
def model(request, tiny_config):
    torch.manual_seed(0)
    model = build_model(family_config(request.param, tiny_config)).eval()
    for module in model.modules():  # statistics as after training
        if hasattr(module, "running_var"):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2)
        if hasattr(module, "running_var") or isinstance(module, LevelBatchNorm):
            for parameter, low in ((module.weight, 0.5), (module.bias, -0.1)):
                if parameter is not None:  # None in the norms of single levels
                    parameter.data.uniform_(low, low + 1)
    if isinstance(model, RetinaNet):
        spread_scores(model, model.prepare(inputs(model)[0])[0])
    return model


def inputs(model: DetectionModel) -> tuple[list[Tensor], list[Tensor] | None]:
    images = [torch.rand(3, 64, 96), torch.rand(3, 80, 72)]
    boxes = torch.tensor([[6.0, 8.0, 30.0, 40.0], [20.0, 20.0, 60.0, 60.0]])
    return images, [boxes, boxes] if model.takes_proposals else None


def assert_same_scores(actual: list[Detections], expected: list[Detections]) -> None:
    assert all(torch.equal(a.scores, b.scores) for a, b in zip(actual, expected, strict=True))


def test_float32_detects_the_same(model):
    before = copy.deepcopy(model.state_dict())
    optimized = optimize(model, "float32")
    batch = inputs(model)
    detected = model.detect(*batch)
    assert_same_scores(pickle.loads(pickle.dumps(model, 2)).detect(*batch), detected)
    for actual, expected in zip(optimized.detect(*batch), detected, strict=True):
        assert len(expected.scores) > 0
        assert len(expected.scores.unique()) == len(expected.scores)
        assert_same_objects(actual, expected, atol=1e-3)
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert next(model.parameters()).requires_grad


@pytest.mark.parametrize("model", IN_HALF, indirect=True)
def test_bfloat16_models_score_boxes_in_float32(model):
    optimized = optimize(model, "bfloat16")
    batch = inputs(model)
    images, proposals = model.prepare(*batch)
    with torch.no_grad():
        expected = model.backbone(images.pixels)
        levels = optimized.backbone(images.pixels)
        for level, target in zip(levels, expected, strict=True):
            assert level.dtype == torch.bfloat16
            assert (level.float() - target).norm() < 0.03 * target.norm()
        predicted = optimized.predict_boxes(levels, images, proposals)
    assert predicted.boxes.dtype == predicted.scores.dtype == torch.float32
    copied = pickle.loads(pickle.dumps(optimized, 2))
    assert_same_scores(copied.detect(*batch), optimized.detect(*batch))


def test_all_layers_of_a_resnet_are_fused_into_convolutions(tiny_config):
    config = tiny_config("MODEL.RESNETS.NORM", "FrozenBN", "MODEL.FPN.NORM", "")
    backbone = optimize(build_model(config), "float32").backbone
    kinds = {type(module) for module in backbone.modules()}
    assert FusedConv2d in kinds
    assert not kinds & {nn.Conv2d, nn.ReLU, FrozenBatchNorm2d, nn.BatchNorm2d}
    # Four of eight residual additions overwrite their shortcut, which no other layer reads.
    assert "+" not in backbone.code
    assert backbone.code.count("overwrite = True") >= 4


def fuse_part(part: nn.Module, x: Tensor) -> nn.Module:
    """Return the fused part, which must compute the same."""
    fused = fuse(copy.deepcopy(part.eval()), torch.float32, levels=1, scores=False)
    with torch.no_grad():
        torch.testing.assert_close(fused(x), part(x), rtol=1e-5, atol=1e-5)
        assert len(fused(x[:0])) == 0
    return fused


class Residual(nn.Module):
    """Residual block whose shortcut is read again after the addition."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.first(x)
        half = shortcut[:, :, ::2, ::2]
        out = self.activation(self.norm(self.second(x)) + half)
        return F.relu(out + shortcut[:, :, ::2, ::2])


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.ReLU6(), nn.SiLU(), nn.Hardswish()])
@pytest.mark.parametrize("onednn", [True, False])
def test_a_feature_map_that_is_read_again_is_not_overwritten(activation, onednn, monkeypatch):
    torch.manual_seed(0)
    if not onednn:
        monkeypatch.setattr(fused_layers, "onednn_fuses", lambda dtype: False)
    fuse_part(Residual(activation), torch.randn(2, 16, 9, 7))


class Similar(nn.Module):
    """Adds a tensor that is broadcast, and calls layers with similar paths."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.ModuleDict({"b_c": nn.Linear(4, 4)})
        self.a_b = nn.ModuleDict({"c": nn.Linear(4, 4)})
        self.fused_0, self.scale = nn.Conv2d(4, 4, 1), nn.Parameter(torch.tensor(3.0))
        self.shift = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor) -> Tensor:
        y = (self.fused_0(x) + self.shift(x)).mean((2, 3))
        return self.scale * self.a_b["c"](self.a["b_c"](y))


@pytest.mark.parametrize(
    ("part", "kinds"),
    [
        *(
            (nn.Sequential(nn.Conv2d(4, 8, 3, 2, 1, groups=2), nn.BatchNorm2d(8), activation()),
             [FusedConv2d])
            for activation in (nn.ReLU, nn.ReLU6, nn.SiLU, nn.Hardswish)
        ),
        (nn.Sequential(PaddedConv2d(nn.Conv2d(4, 8, 3, 2), (0, 1, 2, 0)), nn.BatchNorm2d(8),
                       nn.ReLU6()), [nn.ZeroPad2d, FusedConv2d]),
        (Similar(), [FusedConv2d, nn.AdaptiveAvgPool2d, nn.Linear, nn.Linear]),
    ],
)  # fmt: skip
def test_layers_that_a_fused_part_calls(part, kinds):
    fused = fuse_part(part, 3 * torch.randn(2, 4, 9, 7))
    called = [type(module) for module in fused.modules() if not [*module.children()]]
    assert sorted(map(str, called)) == sorted(map(str, kinds))


def test_the_last_layers_run_in_float32():
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 3, padding=1)
            self.scores, self.deltas = nn.Conv2d(4, 3, 1), nn.Conv2d(4, 8, 1, bias=False)

        def forward(self, features: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            hidden = [F.relu(self.conv(feature)) for feature in features]
            return [self.scores(x) for x in hidden], [self.deltas(x) for x in hidden]

    head = Head()
    levels = [torch.randn(1, 4, 8, 8), torch.randn(1, 4, 4, 4)]
    with torch.no_grad():
        fused = fuse(copy.deepcopy(head), torch.float32, levels=2, scores=True)
        torch.testing.assert_close(fused(levels), head(levels))
        half = fuse(copy.deepcopy(head), torch.bfloat16, levels=2, scores=True)
        assert {x.dtype for part in half(levels) for x in part} == {torch.float32}
    assert half.code.count("float()") == 2  # once for each map


def test_code_that_depends_on_values_is_not_fused(tiny_config):
    class Conditional(nn.Module):
        def __init__(self, backbone: nn.Module) -> None:
            super().__init__()
            self.backbone = backbone

        def forward(self, x: Tensor) -> Any:
            return self.backbone(x if x.sum() > 0 else -x)

    model = build_model(tiny_config()).eval()
    model.backbone.body = Conditional(model.backbone.body)
    with pytest.raises(NoGraphError):
        fuse(copy.deepcopy(model.backbone), torch.float32, levels=5, scores=False)
    images = [torch.rand(3, 64, 64)]
    same = optimize(model, "float32").detect(images)[0]
    assert torch.allclose(same.scores, model.detect(images)[0].scores, atol=1e-5)
    optimize(model, "bfloat16").detect(images)


def scaled_weight_norm(layer: nn.Module) -> None:
    """Make the norm differ from that of the weights, which may give equal scores."""
    parametrizations.weight_norm(layer).parametrizations.weight.original0.data.mul_(1.5)


CUSTOM: dict[str, Callable[[nn.Module], Any]] = {
    "hook": lambda layer: layer.register_forward_hook(lambda *call: call[2] * 1.5),
    "pre-hook": lambda layer: layer.register_forward_pre_hook(lambda _, inputs: (inputs[0] * 1.5,)),
    "pruned": lambda layer: prune.random_unstructured(layer, "weight", amount=0.5),
    "weight norm": scaled_weight_norm,
    "spectral norm": parametrizations.spectral_norm,
}


@pytest.mark.parametrize(
    "path", ["roi_heads.box.feature_extractor.fc6", "backbone.body.stem.conv1"]
)
@pytest.mark.parametrize("kind", CUSTOM)
def test_layers_with_hooks_or_computed_weights_stay_as_they_are(kind, path, tiny_config):
    model = build_model(tiny_config("MODEL.ROI_HEADS.SCORE_THRESH", 0.0)).eval()
    images = [torch.rand(3, 64, 64)]
    plain = model.detect(images)[0]
    CUSTOM[kind](model.get_submodule(path))
    expected = model.eval().detect(images)[0]
    assert not torch.equal(plain.scores, expected.scores)
    for prepare in (lambda m: optimize(m, "float32"), optimize_for_training):
        torch.testing.assert_close(prepare(model).detect(images)[0].scores, expected.scores)


@pytest.mark.parametrize(
    ("misuse", "action"),
    [
        (lambda model: model.train(), "be trained"),
        (lambda model: model.state_dict(), "be saved as a state dict"),
        (lambda model: nn.DataParallel(model).state_dict(), "be saved as a state dict"),
        (lambda model: model.double(), "be moved or converted"),
        (lambda model: model.to(torch.bfloat16), "be moved or converted"),
        (lambda model: optimize(model), "be moved or converted"),
        (lambda model: model([torch.rand(3, 64, 64, requires_grad=True)]), "compute gradients"),
    ],
)
def test_an_optimized_copy_says_what_it_cannot_do(misuse, action, tiny_config):
    with pytest.raises(RuntimeError, match=f"made for inference, and cannot {action}"):
        misuse(optimize(build_model(tiny_config()), "float32").eval())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_images_without_foreground(dtype, tiny_config):
    """The second pass of the box head has no RoIs if the first one classifies all as background."""
    keys = ("MODEL.ROI_BOX_HEAD.PASSES", 2, "MODEL.CLS_AGNOSTIC_BBOX_REG", True)
    model = build_model(tiny_config(*keys, "MODEL.ROI_HEADS.SCORE_THRESH", 0.05)).eval()
    bias = dict(model.named_parameters())["roi_heads.box.predictor.cls_score.bias"]
    with torch.no_grad():
        bias[0] = 100.0
    for detector in (model, optimize(model, dtype)):
        assert len(detector([torch.rand(3, 64, 96)])[0]["boxes"]) == 0


def test_frozen_norms_of_timm_are_folded(tiny_config):
    pytest.importorskip("timm", reason="timm is not installed")
    model = build_model(tiny_config("MODEL.BACKBONE.CONV_BODY", "timm/test_efficientnet-FPN"))
    assert any(isinstance(module, FrozenBatchNorm2d) for module in model.eval().modules())
    optimized = optimize(model, "float32")
    assert not any(isinstance(module, FrozenBatchNorm2d) for module in optimized.modules())
    images, _ = inputs(model)
    pixels = model.prepare(images)[0].pixels
    with torch.no_grad():
        for level, target in zip(optimized.backbone(pixels), model.backbone(pixels), strict=True):
            torch.testing.assert_close(level, target, rtol=1e-4, atol=1e-4)


def test_models_are_optimized_and_read_without_tracing(tiny_config, monkeypatch):
    """Tracing patches `nn.Module` for all threads."""
    monkeypatch.setattr(torch.fx.Tracer, "trace", None)
    stored = pickle.dumps(optimize(build_model(tiny_config()).eval(), "float32"))
    pickle.loads(stored).detect([torch.rand(3, 64, 64)])
    with pytest.raises(ValueError, match=r"int8.*choose one of auto"):
        optimize(build_model(tiny_config()), "int8")
