"""MobileNetV3-Large (https://arxiv.org/abs/1905.02244) as in torchvision's detectors."""

from torch import Tensor, nn
from yacs.config import CfgNode

from detlite.conventions import convention_of
from detlite.modeling.layers.norm import Norm, build_optional_norm, freeze_batch_norm

from .build import BACKBONES, Backbone, build_body_norm
from .fpn import FPN

# Index of the first layer of each part: the stem, the blocks of stride 2, the last convolution.
_PARTS = (0, 2, 4, 7, 13, 16)


class MobileNetV3(nn.Sequential):
    """The layers of torchvision's classifier before its pooling, with the same names.

    Args:
        norm: after each convolution.
        freeze_at: number of leading parts that are not trained, 0 to 6.
        freeze_norm: batch norm in frozen parts keeps its statistics too.

    Attributes:
        channels: of the two maps, which both have stride 32.
    """

    channels = (160, 960)

    def __init__(self, norm: Norm, freeze_at: int = 0, freeze_norm: bool = True) -> None:
        # Imported late, because it takes seconds.
        from torchvision.models import mobilenet_v3_large

        super().__init__(*mobilenet_v3_large(norm_layer=norm).features)
        for layer in list(self)[: (*_PARTS, len(self))[freeze_at]]:
            layer.requires_grad_(False)
            if freeze_norm:
                freeze_batch_norm(layer)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Compute [B, C, H / 32, W / 32] of the last block of stride 2 and of the last layer."""
        maps = []
        for index, layer in enumerate(self):
            x = layer(x)
            if index in _PARTS[-2:]:
                maps.append(x)
        return maps


@BACKBONES.register("MobileNetV3-Large-FPN")
def _build_mobilenet(cfg: CfgNode) -> Backbone:
    """Build torchvision's pyramid of two levels of stride 32. RoIs use the first one."""
    body = MobileNetV3(
        build_body_norm(cfg),
        cfg.MODEL.BACKBONE.FREEZE_CONV_BODY_AT,
        convention_of(cfg).freeze_batch_statistics,
    )
    channels = cfg.MODEL.RESNETS.BACKBONE_OUT_CHANNELS or 256
    neck = FPN(body.channels, channels, build_optional_norm(cfg, "FPN"), cfg.MODEL.FPN.USE_RELU)
    return Backbone(body, neck, channels, strides=(32, 32, 64), pooled=1)
