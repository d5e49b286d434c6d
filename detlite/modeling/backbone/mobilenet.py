"""MobileNetV3-Large (https://arxiv.org/abs/1905.02244) as in torchvision's detectors."""

from torch import Tensor, nn

from detlite.modeling.layers.norm import Norm, freeze_batch_norm

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
