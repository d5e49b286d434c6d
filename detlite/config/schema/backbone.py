"""Keys of the backbone: the body (ResNet, FBNet, timm) and the FPN."""

from __future__ import annotations

from ..checks import each, in_range, not_negative, one_of, positive
from .key import NORMS, Key


def _fbnet_head(head: str, extractor: str, last_scale: float) -> list[Key]:
    prefix = f"MODEL.FBNET.{head}_HEAD_"
    return [
        Key(
            prefix + "BLOCKS",
            [],
            f"numbers of the blocks that {extractor} has; empty: all",
            each(not_negative, empty=True),
        ),
        Key(prefix + "STRIDE", 0, "of the first; 0: the architecture's", one_of(0, 1, 2)),
        Key(
            prefix + "LAST_SCALE",
            last_scale,
            "width of a 1x1 after them, relative to the architecture's; negative: to the blocks'; "
            "0: none",
        ),
    ]


KEYS = (
    Key(
        "MODEL.BACKBONE.CONV_BODY",
        "R-50-C4",
        "R-{18,34,50,101,152}-{C4,C5,FPN,FPN-RETINANET}, timm/<model> with the same endings, FBNet "
        "or a registered name",
    ),
    Key(
        "MODEL.BACKBONE.FREEZE_CONV_BODY_AT",
        2,
        "leading stages (stem first) of a ResNet that are not trained",
        in_range(0, 5),
    ),
    Key(
        "MODEL.RESNETS.NORM",
        "FrozenBN",
        "norm of the body; SyncBN in several processes needs GPUs",
        one_of(*NORMS),
    ),
    Key("MODEL.RESNETS.NUM_GROUPS", 1, "groups of the 3x3 (ResNeXt)", positive),
    Key("MODEL.RESNETS.WIDTH_PER_GROUP", 64, "channels per group in the first stage", positive),
    Key(
        "MODEL.RESNETS.STRIDE_IN_1X1",
        True,
        "stride of a bottleneck in its 1x1 (original weights) or its 3x3 (torchvision)",
    ),
    Key(
        "MODEL.RESNETS.RES5_DILATION",
        1,
        "dilation of the last stage, which then keeps its stride",
        one_of(1, 2),
    ),
    Key("MODEL.RESNETS.STEM_OUT_CHANNELS", 64, "channels of the stem", positive),
    Key(
        "MODEL.RESNETS.RES2_OUT_CHANNELS",
        None,
        "channels of the first stage; left out: 256 with bottlenecks, 64 with basic blocks",
        positive,
        int,
    ),
    Key(
        "MODEL.RESNETS.BACKBONE_OUT_CHANNELS",
        None,
        "channels of the FPN; left out: 256",
        positive,
        int,
    ),
    Key(
        "MODEL.RESNETS.STAGE_WITH_DCN",
        (False,) * 4,
        "deformable 3x3s in the bottlenecks of res2, res3, res4 and res5",
        each(one_of(True, False), 4),
    ),
    Key(
        "MODEL.RESNETS.WITH_MODULATED_DCN",
        False,
        "deformable convolution, version 2: its taps are weighted as well",
    ),
    Key(
        "MODEL.RESNETS.DEFORMABLE_GROUPS",
        1,
        "parts of its channels that have offsets of their own",
        positive,
    ),
    Key("MODEL.FBNET.ARCH", "default", "architecture of a CONV_BODY FBNet and of its heads"),
    Key("MODEL.FBNET.ARCH_DEF", "", "JSON of an architecture of your own, instead of ARCH"),
    Key("MODEL.FBNET.BN_TYPE", "bn", "norm: batch, group or frozen", one_of("bn", "gn", "af")),
    Key("MODEL.FBNET.SCALE_FACTOR", 1.0, "of all widths", positive),
    Key("MODEL.FBNET.WIDTH_DIVISOR", 1, "widths are rounded to a multiple of it", positive),
    Key("MODEL.FBNET.DW_CONV_SKIP_BN", True, "no norm after depthwise convolutions"),
    Key("MODEL.FBNET.DW_CONV_SKIP_RELU", True, "no ReLU after them"),
    Key(
        "MODEL.FBNET.RPN_HEAD_BLOCKS",
        0,
        "last blocks that FBNet.rpn_head has; 0: all",
        not_negative,
    ),
    Key(
        "MODEL.FBNET.RPN_BN_TYPE",
        "",
        "norm in FBNet.rpn_head; empty: BN_TYPE",
        one_of("", "bn", "gn", "af"),
    ),
    *_fbnet_head("DET", "FBNet.roi_head", 1.0),
    *_fbnet_head("MASK", "FBNet.roi_head_mask", 0.0),
    *_fbnet_head("KPTS", "FBNet.roi_head_keypoints", 0.0),
    Key(
        "MODEL.TIMM.FROZEN_NORM",
        True,
        "batch norm of a body of timm keeps its statistics, scale and shift",
    ),
    Key("MODEL.FPN.NORM", "", "norm in the FPN; empty: none", one_of("", *NORMS)),
    Key("MODEL.FPN.USE_RELU", False, "ReLU after the FPN's convolutions"),
    Key("MODEL.GROUP_NORM.DIM_PER_GP", -1, "channels per group; -1: by NUM_GROUPS"),
    Key("MODEL.GROUP_NORM.NUM_GROUPS", 32, "groups; -1: by DIM_PER_GP"),
    Key("MODEL.GROUP_NORM.EPSILON", 1e-5, "added to the variance", positive),
)
