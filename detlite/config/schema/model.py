"""Keys of the run, the whole model, the backbone (ResNet, transformer, FBNet, timm) and the FPN."""

from detlite.config.key import (
    Key,
    below_one,
    convention_fields,
    each,
    in_range,
    norm,
    not_negative,
    one_of,
    optional_norm,
    positive,
    strings,
)
from detlite.conventions import CONVENTIONS

_RUN = {
    Key("IMPORTS", (), strings): (
        "modules, or .py files relative to the file that names them, with your components and keys"
    ),
    Key("OUTPUT_DIR", "output"): "folder for logs, checkpoints and results",
    Key("SEED", 0, in_range(0, 2**63 - 2**16)): "seed of sampling, augmentation and initialization",
    Key("DTYPE", "float32", one_of("auto", "float32", "float16", "bfloat16")): (
        "precision of the forward pass (torch.amp); auto: bfloat16 if the CPU (AMX or AVX512-BF16) "
        "or the GPU has instructions for it, otherwise float32"
    ),
}
_MODEL = {
    Key("META_ARCHITECTURE", "GeneralizedRCNN"): (
        "GeneralizedRCNN (Faster, Mask, Keypoint, Cascade R-CNN), RetinaNet, ProposalNetwork (an "
        "RPN without heads) or a registered detector"
    ),
    Key("DEVICE", "auto"): (
        "'cpu', 'cuda', 'cuda:1' or another device of torch such as 'mps' or 'xpu', see "
        "docs/devices.md; auto: CUDA if available, otherwise the CPU"
    ),
    Key("MEMORY_FORMAT", "channels_last", one_of("channels_last", "contiguous")): (
        "memory layout of weights and feature maps in training, evaluation and exported models; "
        "contiguous reproduces torchvision's results bit for bit and is about 15 % slower "
        "on a CPU"
    ),
    Key("COMPILE", False): (
        "compile training and evaluation by torch.compile, which needs Triton on a GPU and a C++ "
        "compiler on a CPU. The first step takes a minute or more"
    ),
    Key("WEIGHT", ""): (
        "checkpoint to start from: a path, or a name that starts with https://, torchvision://, "
        "detectron2://, catalog://, timm://, hf:// or package://; empty: train from scratch"
    ),
    Key("WEIGHT_ROOT", "${XDG_CACHE_HOME:-~/.cache}/detlite/weights"): (
        "folder for downloaded weights; ${VARIABLE:-default} is expanded"
    ),
    Key("REINIT_HEADS", False): (
        "initialize heads that MODEL.WEIGHT lacks, and layers of another number of classes if no "
        "category has the same name; False: report an error"
    ),
    Key("MASK_ON", False): "predict instance masks",
    Key("KEYPOINT_ON", False): "predict keypoints",
    Key("LOAD_PROPOSALS", False): "Fast R-CNN: use DATASETS.PROPOSAL_FILES_* instead of an RPN",
    Key("CLS_AGNOSTIC_BBOX_REG", False): "predict one box per RoI instead of one per class",
    Key("CONVENTION", "", one_of("", *CONVENTIONS)): (
        "framework whose numeric conventions the model follows (docs/conventions.md); empty: the "
        "framework of MODEL.WEIGHT, or detlite"
    ),
    Key("CONVENTION_OVERRIDE", (), convention_fields): (
        "changes of single fields of the convention, such as [resize=floor, anchor_offset=0.5]"
    ),
}
_BACKBONE = {
    Key("CONV_BODY", "R-50-C4"): (
        "backbone, a body and a neck: R-{18,34,50,101,152}, timm/<model> or a registered body with "
        "-C4, -C5, -FPN, -FPN-RETINANET or a registered neck; ViT-{T,S,B,L,H}-SFP (ViTDet), also "
        "for plain vision transformers of timm; MobileNetV3-Large-FPN (torchvision), FBNet"
    ),
    Key("FREEZE_CONV_BODY_AT", 2, in_range(0, 5)): (
        "number of frozen stages, counted from the stem; the stages of a plain vision transformer "
        "are the embedding and four quarters of the blocks"
    ),
    Key("FREEZE_NORM_BELOW", 0, not_negative): (
        "freeze batch norm of a ResNet or timm model in training if it sees fewer images than this "
        "in a step of one process (SyncBN: of all processes); 0: never"
    ),
    Key("CHECKPOINT_ACTIVATIONS", False): (
        "activation checkpointing: store only the inputs of a ResNet's stages or a transformer's "
        "blocks (other models: as timm defines) and recompute the activations in the backward "
        "pass, which needs less memory and more time"
    ),
}
_RESNETS = {
    Key("NORM", "FrozenBN", norm): (
        "normalization: FrozenBN, BN, SyncBN (over the batches of all processes, needs GPUs), GN, "
        "or LN (over the channels at each position). Batch norm of timm models is trained with BN, "
        "otherwise frozen"
    ),
    Key("BN_EPSILON", 1e-5, positive): "added to the variance in BN and SyncBN of the backbone",
    Key("NUM_GROUPS", 1, positive): "groups of the 3x3 convolutions (ResNeXt)",
    Key("WIDTH_PER_GROUP", 64, positive): "channels per group in the first stage",
    Key("STRIDE_IN_1X1", True): (
        "put the stride of bottlenecks in the 1x1 convolution; False: in the 3x3 (torchvision)"
    ),
    Key("RES5_DILATION", 1, one_of(1, 2)): "dilation of the last stage; 2 keeps the stride at 16",
    Key("STEM_OUT_CHANNELS", 64, positive): "channels of the stem",
    Key("RES2_OUT_CHANNELS", None, positive, int): (
        "channels of the first stage; unset: 256 with bottlenecks, 64 with basic blocks"
    ),
    Key("BACKBONE_OUT_CHANNELS", None, positive, int): "channels of the FPN; unset: 256",
    Key("STAGE_WITH_DCN", (False,) * 4, each(one_of(True, False), 4)): (
        "use deformable 3x3 convolutions in the bottlenecks of res2, res3, res4 and res5"
    ),
    Key("WITH_MODULATED_DCN", False): "modulated deformable convolutions (version 2)",
    Key("DEFORMABLE_GROUPS", 1, positive): "channel groups with separate offsets",
}


_FBNET = {
    Key("ARCH", "default"): "architecture of CONV_BODY FBNet and its heads",
    Key("ARCH_DEF", ""): "custom architecture as JSON, instead of ARCH",
    Key("BN_TYPE", "bn", one_of("bn", "gn", "af")): "norm: batch (bn), group (gn) or frozen (af)",
    Key("WIDTH_DIVISOR", 1, positive): "round channel counts to a multiple of this number",
    Key("DET_HEAD_LAST_SCALE", 1.0): (
        "channels of the last 1x1 convolution of FBNet.roi_head, relative to those of the "
        "architecture; negative: relative to those of the blocks; 0: no last convolution"
    ),
}
_VIT = {
    Key("WINDOW", 14, in_range(0, 256)): (
        "side of the attention windows of a CONV_BODY ...-SFP, in patches of 16 pixels; 0: all "
        "blocks attend to the whole image"
    ),
    Key("GLOBAL_BLOCKS", 4, not_negative): (
        "number of evenly spaced blocks with global attention, including the last block"
    ),
    Key("IMAGE_SIZE", 1024, in_range(16)): (
        "image side in pixels for which a ViT-...-SFP learns position embeddings, which are "
        "interpolated for other sizes"
    ),
    Key("DROP_PATH", 0.0, below_one): (
        "stochastic depth: probability of skipping the last block of a ...-SFP or timm model for "
        "an image in training; decreases linearly towards the first block"
    ),
}
_FPN = {
    Key("NORM", "", optional_norm): (
        "normalization in the FPN; empty: none, or LN in the SFP of a vision transformer"
    ),
    Key("USE_RELU", False): "apply ReLU after the FPN's convolutions",
}
_GROUP_NORM = {
    Key("DIM_PER_GP", -1): "channels per group; -1: use NUM_GROUPS",
    Key("NUM_GROUPS", 32): "number of groups; -1: use DIM_PER_GP",
    Key("EPSILON", 1e-5, positive): "value added to the variance",
}

SECTIONS = {
    "": _RUN,
    "MODEL": _MODEL,
    "MODEL.BACKBONE": _BACKBONE,
    "MODEL.RESNETS": _RESNETS,
    "MODEL.FBNET": _FBNET,
    "MODEL.VIT": _VIT,
    "MODEL.FPN": _FPN,
    "MODEL.GROUP_NORM": _GROUP_NORM,
}
