import pytest
import torch
from torch import nn

from detlite.config import ConfigError
from detlite.modeling.backbone import BODIES, NECKS, Backbone, build_backbone
from detlite.modeling.build import build_model

# The leading parts of backbones, as prefixes of their parameters' names.
PARTS: dict[str, list[tuple[str, ...]]] = {
    "R-18-FPN": [("stem",), ("res2",), ("res3",), ("res4",), ("res5",)],
    "MobileNetV3-Large-FPN": [
        tuple(map(str, range(*layers))) for layers in ((0, 2), (2, 4), (4, 7), (7, 13), (13, 16))
    ],
    "ViT-T-SFP": [
        ("patch_embed", "pos_embed"),
        *(tuple(f"blocks.{n + k}" for k in range(3)) for n in (0, 3, 6, 9)),
    ],
    "timm/test_convnext-FPN": [("net.stem",), *((f"net.stages.{n}",) for n in range(4))],
    "timm/test_resnet-FPN": [("net.conv1", "net.bn1"), *((f"net.layer{n}",) for n in range(1, 5))],
    "timm/test_efficientnet-FPN": [
        ("net.conv_stem", "net.bn1", "net.blocks.0"),
        *((f"net.blocks.{n}",) for n in range(1, 5)),
    ],
    "timm/test_vit-SFP": [
        ("net.patch_embed", "net.pos_embed", "net.cls_token", "net.reg_token", "net.norm_pre"),
        ("net.blocks.0",),
        ("net.blocks.1", "net.blocks.2"),
        ("net.blocks.3",),
        ("net.blocks.4", "net.blocks.5", "net.norm"),
    ],
}


WITHOUT_BATCH_NORM = ("ViT-T-SFP", "timm/test_convnext-FPN", "timm/test_vit-SFP")


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("freeze_at", range(6))
def test_leading_parts_are_frozen(tiny_config, name, freeze_at):
    if name.startswith("timm"):
        pytest.importorskip("timm", reason="timm is not installed")
    bodies = []
    for number in (0, freeze_at):
        opts = ["MODEL.RESNETS.NORM", "BN",
                "MODEL.BACKBONE.FREEZE_CONV_BODY_AT", number]  # fmt: skip
        with torch.device("meta"):
            bodies.append(build_backbone(tiny_config("MODEL.BACKBONE.CONV_BODY", name, *opts)).body)
    frozen = tuple(f"{path}." for part in PARTS[name][:freeze_at] for path in part)
    for path, parameter in bodies[1].named_parameters():
        assert parameter.requires_grad != f"{path}.".startswith(frozen), path
    every, trained = (
        {path for path, layer in body.named_modules() if isinstance(layer, nn.BatchNorm2d)}
        for body in bodies
    )
    assert bool(every) == (name not in WITHOUT_BATCH_NORM)
    assert trained == {path for path in every if not f"{path}.".startswith(frozen)}


def body(name, *opts):
    return ["MODEL.BACKBONE.CONV_BODY", name, *opts]


CHECKPOINTS = ("MODEL.BACKBONE.CHECKPOINT_ACTIVATIONS", True)
SIZES = ("MODEL.RPN.ANCHOR_SIZES", (32, 64, 128))
DEFORMABLE = ("MODEL.RESNETS.STAGE_WITH_DCN", (False, False, False, True))


@pytest.mark.parametrize(
    ("opts", "message"),
    [
        (body("R-19-FPN"), r"MODEL\.BACKBONE\.CONV_BODY: unknown backbone 'R-19-FPN'"),
        (body("R-50-ABC"), "unknown backbone 'R-50-ABC'"),
        (["MODEL.RESNETS.NUM_GROUPS", 32], "ResNet-18 has basic blocks"),
        (["MODEL.RESNETS.WIDTH_PER_GROUP", 32], "ResNet-18 has basic blocks"),
        (DEFORMABLE, "ResNet-18 has basic blocks"),
        (body("R-50-FPN", "MODEL.RESNETS.DEFORMABLE_GROUPS", 3, *DEFORMABLE),
         "DEFORMABLE_GROUPS 3 does not divide the"),
        (body("ViT-T-FPN"), "ViT-T-FPN, but a ViT has only a map of stride 16"),
        (body("timm/test_convnext"), "unknown backbone .*timm/<model>; necks: C4, C5, FPN"),
        (body("timm/test_convnext-C4"), "CHANNELS is 16, but timm/test_convnext-C4 has 48"),
        (body("timm/test_convnext-FPN", *SIZES), r"ANCHOR_SIZES is .* has 5 levels"),
        (body("timm/no_such_model-FPN"), "timm .* has no model 'no_such_model'"),
        (body("timm/vit_tiny_patch16_224-FPN"), r"has maps of strides \[16\], .* needs \[4, 8"),
        (body("timm/vgg11-C4", "MODEL.VIT.DROP_PATH", 0.3), r"is 0\.3, but timm's vgg11 has no"),
        (body("timm/vit_small_patch14_dinov2-SFP"), "of 14 pixels, .*: use a patch16 model"),
        (body("timm/test_convnext-SFP"), "timm's test_convnext is not"),
        (body("timm/beit_base_patch16_224-SFP"), "timm's beit_base_patch16_224 is not"),
        (body("timm/test_resnet-FPN", *CHECKPOINTS, "MODEL.RESNETS.NORM", "BN"),
         r"timm's test_resnet has batch norm.*MODEL\.RESNETS\.NORM to FrozenBN"),
        (["MODEL.RESNETS.NORM", "BN", *CHECKPOINTS], "ResNet-18 has batch norm, which would count"),
        (body("timm/hrnet_w18_small-FPN", *CHECKPOINTS), "has no activation checkpointing"),
    ],
)  # fmt: skip
def test_invalid_configs(tiny_config, opts, message):
    if "timm/" in str(opts):
        pytest.importorskip("timm", reason="timm is not installed")
    with pytest.raises(ConfigError, match=message):
        build_model(tiny_config(*opts))


@pytest.mark.parametrize(("dilation", "stride"), [(1, 32), (2, 16)])
def test_c5_backbone(tiny_config, dilation, stride):
    opts = body("R-18-C5", "MODEL.RESNETS.RES5_DILATION", dilation)
    with torch.device("meta"):
        backbone = build_backbone(tiny_config(*opts, "MODEL.RESNETS.BACKBONE_OUT_CHANNELS", None))
        (level,) = backbone(torch.zeros(1, 3, 64, 128))
    assert backbone.strides == (stride,)
    assert level.shape == (1, 128, 64 // stride, 128 // stride)


class _TwoMaps(nn.Module):
    """A body that returns a map for each requested stride."""

    def __init__(self, strides):
        super().__init__()
        self.strides, self.channels = tuple(strides), [8] * len(strides)
        self.convs = nn.ModuleList(nn.Conv2d(3, 8, 3, side, padding=1) for side in strides)

    def forward(self, x):
        return [conv(x) for conv in self.convs]


def _build_average_neck(cfg, make_body):
    body = make_body((8, 16))
    return Backbone(body, nn.Identity(), body.channels[0], body.strides, pooled=2)


@pytest.mark.parametrize(
    ("name", "strides"),
    [
        ("own-FPN", (4, 8, 16, 32, 64)),
        ("own-FPN-RETINANET", (8, 16, 32, 64, 128)),
        ("own-C5", (32,)),
        ("own-plain", (8, 16)),
        ("R-18-SFP", (4, 8, 16, 32, 64)),
    ],
)
def test_bodies_and_necks_combine_by_name(tiny_config, monkeypatch, name, strides):
    monkeypatch.setitem(BODIES._builders, "own", lambda cfg, strides: _TwoMaps(strides))
    monkeypatch.setitem(NECKS._builders, "plain", _build_average_neck)
    keys = ["MODEL.BACKBONE.CONV_BODY", name, "MODEL.RESNETS.BACKBONE_OUT_CHANNELS", None]
    backbone = build_backbone(tiny_config(*keys))
    assert backbone.strides == strides
    levels = backbone(torch.zeros(1, 3, 128, 64))
    sizes = [(backbone.out_channels, 128 // stride, -(-64 // stride)) for stride in strides]
    assert [tuple(level.shape[1:]) for level in levels] == sizes
