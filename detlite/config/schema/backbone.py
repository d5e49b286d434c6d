"""Keys of the backbone: the body (ResNet, vision transformer, FBNet, timm) and the FPN."""

from __future__ import annotations

from detlite.config.checks import each, in_range, not_negative, one_of, positive

from .key import NORMS, Key, section


def _fbnet_head(head: str, extractor: str, last_scale: float) -> tuple[Key, ...]:
    blocks = f"numbers of the blocks that {extractor} has; empty: all"
    width = (
        "width of a 1x1 after them, relative to the architecture's; negative: to the blocks'; "
        "0: none"
    )
    return (
        Key(f"{head}_HEAD_BLOCKS", [], blocks, each(not_negative, empty=True)),
        Key(f"{head}_HEAD_STRIDE", 0, "of the first; 0: the architecture's", one_of(0, 1, 2)),
        Key(f"{head}_HEAD_LAST_SCALE", last_scale, width),
    )


_BACKBONE = section(
    "MODEL.BACKBONE",
    Key(
        "CONV_BODY",
        "R-50-C4",
        "R-{18,34,50,101,152}-{C4,C5,FPN,FPN-RETINANET}, ViT-{T,S,B,L,H}-SFP (ViTDet's), "
        "timm/<model> with the endings of a ResNet or, of a plain vision transformer, -SFP; FBNet "
        "or a registered name",
    ),
    Key(
        "FREEZE_CONV_BODY_AT",
        2,
        "leading stages (stem first) of a ResNet or another body in stages that are not trained; "
        "of a plain vision transformer its embedding, then quarters of its blocks",
        in_range(0, 5),
    ),
    Key(
        "FREEZE_NORM_BELOW",
        0,
        "training freezes the batch norm of a ResNet or a timm model where it would see fewer "
        "images at once: those of a step in one process (SyncBN: in all) and one of its "
        "SOLVER.ACCUMULATION_STEPS; 0: never",
        not_negative,
    ),
    Key(
        "CHECKPOINT_ACTIVATIONS",
        False,
        "training keeps the inputs of a ResNet's stages or an SFP's blocks (of other timm models, "
        "what timm keeps) alone and computes the rest again: less memory, more time",
    ),
)
_RESNETS = section(
    "MODEL.RESNETS",
    Key(
        "NORM",
        "FrozenBN",
        "norm of the body: FrozenBN, BN, SyncBN (over the batch of all processes, which needs "
        "GPUs), GN or LN (over the channels of each place)",
        one_of(*NORMS),
    ),
    Key("NUM_GROUPS", 1, "groups of the 3x3 (ResNeXt)", positive),
    Key("WIDTH_PER_GROUP", 64, "channels per group in the first stage", positive),
    Key(
        "STRIDE_IN_1X1",
        True,
        "stride of a bottleneck in its 1x1 (original weights) or its 3x3 (torchvision)",
    ),
    Key("RES5_DILATION", 1, "dilation of the last stage; with 2 it keeps its stride", one_of(1, 2)),
    Key("STEM_OUT_CHANNELS", 64, "channels of the stem", positive),
    Key(
        "RES2_OUT_CHANNELS",
        None,
        "channels of the first stage; left out: 256 with bottlenecks, 64 with basic blocks",
        positive,
        int,
    ),
    Key("BACKBONE_OUT_CHANNELS", None, "channels of the FPN; left out: 256", positive, int),
    Key(
        "STAGE_WITH_DCN",
        (False,) * 4,
        "deformable 3x3s in the bottlenecks of res2, res3, res4 and res5",
        each(one_of(True, False), 4),
    ),
    Key("WITH_MODULATED_DCN", False, "deformable convolution, version 2: taps are weighted too"),
    Key("DEFORMABLE_GROUPS", 1, "parts of its channels that have offsets of their own", positive),
)
_FBNET = section(
    "MODEL.FBNET",
    Key("ARCH", "default", "architecture of a CONV_BODY FBNet and of its heads"),
    Key("ARCH_DEF", "", "JSON of an architecture of your own, instead of ARCH"),
    Key("BN_TYPE", "bn", "norm: batch, group or frozen", one_of("bn", "gn", "af")),
    Key("SCALE_FACTOR", 1.0, "of all widths", positive),
    Key("WIDTH_DIVISOR", 1, "widths are rounded to a multiple of it", positive),
    Key("DW_CONV_SKIP_BN", True, "no norm after depthwise convolutions"),
    Key("DW_CONV_SKIP_RELU", True, "no ReLU after them"),
    Key("RPN_HEAD_BLOCKS", 0, "last blocks that FBNet.rpn_head has; 0: all", not_negative),
    Key("RPN_BN_TYPE", "", "norm in FBNet.rpn_head; empty: BN_TYPE", one_of("", "bn", "gn", "af")),
    *_fbnet_head("DET", "FBNet.roi_head", 1.0),
    *_fbnet_head("MASK", "FBNet.roi_head_mask", 0.0),
    *_fbnet_head("KPTS", "FBNet.roi_head_keypoints", 0.0),
)
_TIMM = section(
    "MODEL.TIMM",
    Key("FROZEN_NORM", True, "batch norm of a body of timm keeps its statistics, scale and shift"),
)
_VIT = section(
    "MODEL.VIT",
    Key(
        "WINDOW",
        14,
        "side of the windows that most blocks of a CONV_BODY ...-SFP attend within, in patches of "
        "16 pixels; 0: all attend to the whole image",
        not_negative,
    ),
    Key("GLOBAL_BLOCKS", 4, "blocks that do, evenly spread, the last one included", not_negative),
    Key(
        "IMAGE_SIZE",
        1024,
        "a ViT-...-SFP learns the relative positions of images of so many pixels on a side, and "
        "interpolates those of others",
        in_range(16),
    ),
    Key(
        "DROP_PATH",
        0.0,
        "probability that training leaves out what the last block of a ...-SFP or of any body of "
        "timm adds to an image; less before it",
        in_range(0, 1, open_end=True),
    ),
)
_FPN = section(
    "MODEL.FPN",
    Key(
        "NORM",
        "",
        "norm in the pyramid; empty: none, in the SFP of a vision transformer LN",
        one_of("", *NORMS),
    ),
    Key("USE_RELU", False, "ReLU after the FPN's convolutions"),
)
_GROUP_NORM = section(
    "MODEL.GROUP_NORM",
    Key("DIM_PER_GP", -1, "channels per group; -1: by NUM_GROUPS"),
    Key("NUM_GROUPS", 32, "groups; -1: by DIM_PER_GP"),
    Key("EPSILON", 1e-5, "added to the variance", positive),
)

KEYS = (*_BACKBONE, *_RESNETS, *_FBNET, *_TIMM, *_VIT, *_FPN, *_GROUP_NORM)
