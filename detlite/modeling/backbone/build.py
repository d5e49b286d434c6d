"""Build backbones from the config."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from yacs.config import CfgNode

from detlite.modeling.layers.conv import replace_crashing_convs
from detlite.modeling.layers.norm import Norm, build_norm, build_optional_norm
from detlite.registry import Registry

from .fpn import FPN, P6P7
from .input_channels import set_input_channels

# Endings of CONV_BODY, and the stages whose maps are used; stage k has stride 2**k.
ENDINGS = {"C4": (4,), "C5": (5,), "FPN": (2, 3, 4, 5), "FPN-RETINANET": (3, 4, 5)}


class Backbone(nn.Sequential):
    """A bottom-up network (`body`) and a neck.

    Converts images [B, 3, H, W] to one map [B, out_channels, ceil(H / stride), ceil(W / stride)]
    per level.

    Attributes:
        strides: image pixels per cell of each level, finest first.
        pooled: the number of leading levels that RoIs are pooled from; the RPN uses all levels.
    """

    in_channels = 3

    def __init__(
        self, body: nn.Module, neck: nn.Module, out_channels: int, strides: tuple[int, ...],
        pooled: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self.body = body
        self.neck = neck
        self.out_channels = out_channels
        self.strides = strides
        self.pooled = pooled

    def layers(self) -> list[list[nn.Parameter]]:
        """Return the parameters of each layer of the bottom-up network, starting at the image.

        Without a method `layers`, each of its children is a layer.
        """
        if layers := getattr(self.body, "layers", None):
            return layers()
        return [list(child.parameters()) for child in self.body.children()]

    @property
    def min_image_side(self) -> int:
        """Smallest height and width of images for an exported graph: two cells of the coarsest
        level, and two windows of a transformer."""
        return max(2 * self.strides[-1], getattr(self.body, "min_image_side", 0))


BuildBackbone = Callable[[CfgNode], Backbone]

# The modules of the backbones, by their names in CONV_BODY; "timm" stands for all names timm/...
BACKBONES: Registry[BuildBackbone] = Registry(
    "backbone",
    {
        **{
            f"R-{depth}-{ending}": "detlite.modeling.backbone.resnet"
            for depth in (18, 34, 50, 101, 152)
            for ending in ENDINGS
        },
        **{f"ViT-{size}-SFP": "detlite.modeling.backbone.vit" for size in "TSBLH"},
        "timm": "detlite.modeling.backbone.timm",
        "MobileNetV3-Large-FPN": "detlite.modeling.backbone.mobilenet",
        "FBNet": "detlite.modeling.backbone.fbnet",
    },
)


def build_backbone(cfg: CfgNode) -> Backbone:
    """Build the backbone of MODEL.BACKBONE.CONV_BODY for the channels of INPUT.PIXEL_MEAN."""
    name, channels = cfg.MODEL.BACKBONE.CONV_BODY, len(cfg.INPUT.PIXEL_MEAN)
    builder = "timm" if name.startswith("timm/") else name
    backbone = BACKBONES.get(builder, "MODEL.BACKBONE.CONV_BODY")(cfg)
    if channels != 3:
        set_input_channels(backbone.body, channels)
        backbone.in_channels = channels
        backbone.body.in_channels = channels  # type: ignore[assignment]
    replace_crashing_convs(backbone)
    return backbone


def call_with_fake_tensors(module: nn.Module, height: int, width: int) -> Any:
    """Call a backbone on fake images [2, C, height, width]: shapes are computed, values are not."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    state = [*module.named_parameters(), *module.named_buffers()]
    dtype = next(module.parameters()).dtype
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True), torch.device("cpu"):
        fake_state = {name: torch.empty(x.shape, dtype=x.dtype) for name, x in state}
        channels = getattr(module, "in_channels", 3)
        images = torch.empty(2, channels, height, width, dtype=dtype)
        return functional_call(module, fake_state, images)


def build_with_neck(
    cfg: CfgNode, bottom_up: nn.Module, channels: list[int], ending: str, dilation: int = 1
) -> Backbone:
    """Add an FPN to a network with several maps of `channels`; a single map needs no neck.

    `dilation` is 2 if the last stage is dilated and keeps half its stride.
    """
    out_channels = cfg.MODEL.RESNETS.BACKBONE_OUT_CHANNELS
    if len(channels) == 1:
        if out_channels not in (None, channels[0]):
            raise ValueError(
                f"MODEL.RESNETS.BACKBONE_OUT_CHANNELS is {out_channels}, but "
                f"{cfg.MODEL.BACKBONE.CONV_BODY} has {channels[0]}: remove the key"
            )
        stride = 2 ** ENDINGS[ending][0] // dilation
        return Backbone(bottom_up, nn.Identity(), channels[0], strides=(stride,), pooled=1)
    out_channels, top, strides = out_channels or 256, None, (4, 8, 16, 32, 64)
    if ending == "FPN-RETINANET":
        from_c5, relu = cfg.MODEL.RETINANET.USE_C5, cfg.MODEL.RETINANET.P7_RELU
        top = P6P7(channels[-1] if from_c5 else out_channels, out_channels, from_c5, relu)
        strides = (8, 16, 32, 64, 128)
    norm = build_optional_norm(cfg, "FPN")
    neck = FPN(channels, out_channels, norm, cfg.MODEL.FPN.USE_RELU, top)
    return Backbone(bottom_up, neck, out_channels, strides, pooled=4)


def build_body_norm(cfg: CfgNode) -> Norm:
    """Build the norm of MODEL.RESNETS.NORM."""
    resnets = cfg.MODEL.RESNETS
    norm: Any = build_norm(cfg, resnets.NORM)
    return partial(norm, eps=resnets.BN_EPSILON) if resnets.NORM in ("BN", "SyncBN") else norm
