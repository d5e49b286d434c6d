"""Build backbones from the config."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from yacs.config import CfgNode

from detlite.errors import ConfigError
from detlite.modeling.layers.conv import replace_crashing_convs
from detlite.modeling.layers.norm import Norm, build_norm
from detlite.registry import Registry

from .input_channels import set_input_channels


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


# A bottom-up network that returns maps of the requested strides, finest first, and has the
# attributes `channels` and `strides` of its maps.
BuildBody = Callable[[CfgNode, Sequence[int]], Any]
BODIES: Registry[BuildBody] = Registry(
    "backbone",
    {"timm": "detlite.modeling.backbone.timm"},  # all names timm/...
)
# Calls its second argument with the strides of the maps that it needs, which returns the body.
BuildNeck = Callable[[CfgNode, Callable[[Sequence[int]], Any]], Backbone]
NECKS: Registry[BuildNeck] = Registry("neck")
# Networks that are not combined of a body and a neck by name.
BACKBONES: Registry[Callable[[CfgNode], Backbone]] = Registry(
    "backbone", {"FBNet": "detlite.modeling.backbone.fbnet"}
)


def build_backbone(cfg: CfgNode) -> Backbone:
    """Build the backbone of MODEL.BACKBONE.CONV_BODY for the channels of INPUT.PIXEL_MEAN.

    The name is one of `BACKBONES`, or a body and a neck: R-50-FPN.
    """
    name, channels = cfg.MODEL.BACKBONE.CONV_BODY, len(cfg.INPUT.PIXEL_MEAN)
    key = "MODEL.BACKBONE.CONV_BODY"
    if name in BACKBONES:
        backbone = BACKBONES.get(name, key)(cfg)
    else:
        body, neck = split_name(name)
        body = "timm" if body.startswith("timm/") else body
        if body not in BODIES or neck not in NECKS:
            raise ConfigError(
                f"{key}: unknown backbone {name!r}; known are bodies with a neck, such as R-50-FPN "
                f"(bodies: {', '.join(BODIES.names())}; for timm, timm/<model>; necks: "
                f"{', '.join(NECKS.names())}), and {', '.join(BACKBONES.names())}. To use your "
                "own, list its file in IMPORTS"
            )
        backbone = NECKS.get(neck)(cfg, partial(BODIES.get(body), cfg))
    if channels != 3:
        set_input_channels(backbone.body, channels)
        backbone.in_channels = channels
        backbone.body.in_channels = channels  # type: ignore[assignment]
    replace_crashing_convs(backbone)
    return backbone


def split_name(name: str) -> tuple[str, str]:
    """Split a CONV_BODY into body and neck: "R-50-FPN" into "R-50" and "FPN".

    The neck is the longest registered one; it is empty if there is none.
    """
    necks = [neck for neck in NECKS.names() if name.endswith(f"-{neck}")]
    neck = max(necks, key=len, default="")
    return name.removesuffix(f"-{neck}"), neck


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


def build_body_norm(cfg: CfgNode) -> Norm:
    """Build the norm of MODEL.RESNETS.NORM."""
    resnets = cfg.MODEL.RESNETS
    norm: Any = build_norm(cfg, resnets.NORM)
    return partial(norm, eps=resnets.BN_EPSILON) if resnets.NORM in ("BN", "SyncBN") else norm
