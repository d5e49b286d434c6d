"""Keys of the backbone (ResNet, vision transformer, FBNet, timm) and the FPN."""

from detlite.config.checks import below_one, each, in_range, not_negative, one_of, positive

from .key import NORMS, Key, section


def _fbnet_head(head: str, extractor: str, last_scale: float) -> tuple[Key, ...]:
    blocks = f"indices of the blocks that {extractor} uses; empty: all"
    width = (
        "channels of a final 1x1 convolution, relative to the architecture's; negative: relative "
        "to the blocks'; 0: no such convolution"
    )
    return (
        Key(f"{head}_HEAD_BLOCKS", [], blocks, each(not_negative, empty=True)),
        Key(
            f"{head}_HEAD_STRIDE",
            0,
            "stride of the first block; 0: as in the architecture",
            one_of(0, 1, 2),
        ),
        Key(f"{head}_HEAD_LAST_SCALE", last_scale, width),
    )


_BACKBONE = section(
    "MODEL.BACKBONE",
    Key(
        "CONV_BODY",
        "R-50-C4",
        "backbone: R-{18,34,50,101,152}-{C4,C5,FPN,FPN-RETINANET}, ViT-{T,S,B,L,H}-SFP (ViTDet), "
        "timm/<model> with one of the ResNet endings (-SFP for plain vision transformers), "
        "MobileNetV3-Large-FPN (torchvision), FBNet, or a registered name",
    ),
    Key(
        "FREEZE_CONV_BODY_AT",
        2,
        "number of frozen leading stages, the stem being the first; in a plain vision transformer "
        "the stages are the embedding and four quarters of the blocks",
        in_range(0, 5),
    ),
    Key(
        "FREEZE_NORM_BELOW",
        0,
        "freeze batch norm of a ResNet or timm model in training if it would see fewer images than "
        "this at a time: those of one accumulation step in one process (SyncBN: in all "
        "processes); 0: never",
        not_negative,
    ),
    Key(
        "CHECKPOINT_ACTIVATIONS",
        False,
        "activation checkpointing: keep only the inputs of a ResNet's stages or a transformer's "
        "blocks (timm's choice for other models) and recompute the rest in the backward pass, "
        "which saves memory and takes more time",
    ),
)
_RESNETS = section(
    "MODEL.RESNETS",
    Key(
        "NORM",
        "FrozenBN",
        "normalization: FrozenBN, BN, SyncBN (over the batches of all processes, needs GPUs), GN, "
        "or LN (over the channels at each position)",
        one_of(*NORMS),
    ),
    Key("NUM_GROUPS", 1, "groups of the 3x3 convolutions (ResNeXt)", positive),
    Key("WIDTH_PER_GROUP", 64, "channels per group in the first stage", positive),
    Key(
        "STRIDE_IN_1X1",
        True,
        "the stride of bottlenecks is in the 1x1 convolution (original weights); False: in the 3x3 "
        "(torchvision)",
    ),
    Key("RES5_DILATION", 1, "dilation of the last stage; 2 keeps the stride at 16", one_of(1, 2)),
    Key("STEM_OUT_CHANNELS", 64, "channels of the stem", positive),
    Key(
        "RES2_OUT_CHANNELS",
        None,
        "channels of the first stage; unset: 256 with bottlenecks, 64 with basic blocks",
        positive,
        int,
    ),
    Key("BACKBONE_OUT_CHANNELS", None, "channels of the FPN; unset: 256", positive, int),
    Key(
        "STAGE_WITH_DCN",
        (False,) * 4,
        "use deformable 3x3 convolutions in the bottlenecks of res2, res3, res4 and res5",
        each(one_of(True, False), 4),
    ),
    Key("WITH_MODULATED_DCN", False, "modulated deformable convolutions (version 2)"),
    Key("DEFORMABLE_GROUPS", 1, "channel groups with separate offsets", positive),
)
_FBNET = section(
    "MODEL.FBNET",
    Key("ARCH", "default", "architecture of CONV_BODY FBNet and its heads"),
    Key("ARCH_DEF", "", "custom architecture as JSON, instead of ARCH"),
    Key("BN_TYPE", "bn", "norm: batch (bn), group (gn) or frozen (af)", one_of("bn", "gn", "af")),
    Key("SCALE_FACTOR", 1.0, "factor of all channel counts", positive),
    Key("WIDTH_DIVISOR", 1, "channel counts are rounded to a multiple of this number", positive),
    Key("DW_CONV_SKIP_BN", True, "no normalization after depthwise convolutions"),
    Key("DW_CONV_SKIP_RELU", True, "no ReLU after depthwise convolutions"),
    Key("RPN_HEAD_BLOCKS", 0, "last blocks that FBNet.rpn_head uses; 0: all", not_negative),
    Key("RPN_BN_TYPE", "", "BN_TYPE of FBNet.rpn_head; empty: same", one_of("", "bn", "gn", "af")),
    *_fbnet_head("DET", "FBNet.roi_head", 1.0),
    *_fbnet_head("MASK", "FBNet.roi_head_mask", 0.0),
    *_fbnet_head("KPTS", "FBNet.roi_head_keypoints", 0.0),
)
_TIMM = section(
    "MODEL.TIMM",
    Key("FROZEN_NORM", True, "freeze the statistics, scale and shift of batch norm in timm models"),
)
_VIT = section(
    "MODEL.VIT",
    Key(
        "WINDOW",
        14,
        "side of the attention windows of most blocks of a CONV_BODY ...-SFP, in patches of 16 "
        "pixels; 0: all blocks attend to the whole image",
        not_negative,
    ),
    Key(
        "GLOBAL_BLOCKS",
        4,
        "number of evenly spaced blocks with global attention; the last block is one",
        not_negative,
    ),
    Key(
        "IMAGE_SIZE",
        1024,
        "image side in pixels for which a ViT-...-SFP learns relative positions; other sizes are "
        "interpolated",
        in_range(16),
    ),
    Key(
        "DROP_PATH",
        0.0,
        "stochastic depth: probability that training skips the last block of a ...-SFP or timm "
        "model for an image; decreases linearly towards the first block",
        below_one,
    ),
)
_FPN = section(
    "MODEL.FPN",
    Key(
        "NORM",
        "",
        "normalization in the FPN; empty: none, or LN in the SFP of a vision transformer",
        one_of("", *NORMS),
    ),
    Key("USE_RELU", False, "apply ReLU after the FPN's convolutions"),
)
_GROUP_NORM = section(
    "MODEL.GROUP_NORM",
    Key("DIM_PER_GP", -1, "channels per group; -1: use NUM_GROUPS"),
    Key("NUM_GROUPS", 32, "number of groups; -1: use DIM_PER_GP"),
    Key("EPSILON", 1e-5, "added to the variance", positive),
)

KEYS = (*_BACKBONE, *_RESNETS, *_FBNET, *_TIMM, *_VIT, *_FPN, *_GROUP_NORM)
