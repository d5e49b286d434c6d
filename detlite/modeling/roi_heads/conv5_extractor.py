"""The last stage of a ResNet as feature extractor of RoIs (Faster R-CNN on a C4 backbone).

Shapes: R RoIs over all images, C channels, S x S pooled.
"""

from functools import partial

from torch import Tensor
from yacs.config import CfgNode

from detlite.modeling.backbone import Backbone
from detlite.modeling.backbone.resnet import ResNetOptions, build_resnet_options, make_stage

from .extractors import BOX_EXTRACTORS, CONV5_NAMES, MASK_EXTRACTORS, Extractor
from .pooler import Pooler, build_pooler


class ResNetConv5ROIFeatureExtractor(Extractor):
    """Pools from a C4 map and applies the last stage of a ResNet.

    With `dilation` 2 the stage keeps the size of the map.
    """

    def __init__(self, pooler: Pooler, options: ResNetOptions, dilation: int = 1) -> None:
        super().__init__()
        self.pooler = pooler
        self.res5 = make_stage(options, 5, stride=2 // dilation, dilation=dilation)
        self.out_channels = options.channels(5)
        self.out_resolution = -(-pooler.resolution * dilation // 2)

    def embed(self, pooled: Tensor) -> Tensor:
        """Compute [R, 2 C, S / 2, S / 2] from [R, C, S, S]."""
        return self.res5(pooled)


def _build_conv5(cfg: CfgNode, backbone: Backbone, section: str) -> Extractor:
    """Build the extractor of MODEL.<section> from the last stage of the ResNet of CONV_BODY."""
    options = build_resnet_options(cfg)
    if backbone.out_channels != options.channels(4):
        raise ValueError(
            f"MODEL.{section}.FEATURE_EXTRACTOR applies the stage res5 to {options.channels(4)} "
            f"channels, but {cfg.MODEL.BACKBONE.CONV_BODY} has {backbone.out_channels}: use a C4 "
            "backbone, or an FPN head such as FPN2MLPFeatureExtractor"
        )
    pooler = build_pooler(cfg, section, backbone)
    return ResNetConv5ROIFeatureExtractor(pooler, options, cfg.MODEL.RESNETS.RES5_DILATION)


BOX_EXTRACTORS.register(*CONV5_NAMES)(partial(_build_conv5, section="ROI_BOX_HEAD"))
MASK_EXTRACTORS.register(*CONV5_NAMES)(partial(_build_conv5, section="ROI_MASK_HEAD"))
