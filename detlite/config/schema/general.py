"""Keys of the run and of the whole model."""

from detlite.config.checks import convention_fields, in_range, one_of, strings
from detlite.conventions import CONVENTIONS

from .key import Key, section

_RUN = (
    Key("IMPORTS", (), "modules or .py files with your own registered components", strings),
    Key("OUTPUT_DIR", "output", "folder for logs, checkpoints and results"),
    Key(
        "SEED",
        0,
        "random seed of sampling, augmentation and initialization, below 2^63",
        in_range(0, 2**63 - 2**16),  # each process adds its rank
    ),
    Key(
        "DTYPE",
        "float32",
        "precision of the forward pass (torch.amp); auto: bfloat16 if the CPU (AMX or AVX512-BF16) "
        "or the GPU accelerates it, otherwise float32",
        one_of("auto", "float32", "float16", "bfloat16"),
    ),
)
_MODEL = section(
    "MODEL",
    Key(
        "META_ARCHITECTURE",
        "GeneralizedRCNN",
        "GeneralizedRCNN (Faster, Mask, Keypoint, Cascade R-CNN), RetinaNet, ProposalNetwork (an "
        "RPN without heads) or a registered detector",
    ),
    Key(
        "DEVICE",
        "auto",
        "'cpu', 'cuda', 'cuda:1' or another device of torch such as 'mps' or 'xpu', see "
        "docs/devices.md; auto: CUDA if available, otherwise the CPU",
    ),
    Key(
        "MEMORY_FORMAT",
        "channels_last",
        "memory layout of images, weights and feature maps; contiguous reproduces torchvision's "
        "results bit by bit and is about 15 % slower on a CPU",
        one_of("channels_last", "contiguous"),
    ),
    Key(
        "WEIGHT",
        "",
        "checkpoint to start from: a path or a name with one of the prefixes https://, "
        "torchvision://, detectron2://, catalog://, timm://, hf:// and package://; empty: train "
        "from scratch",
    ),
    Key(
        "WEIGHT_ROOT",
        "${XDG_CACHE_HOME:-~/.cache}/detlite/weights",
        "folder for downloaded weights; ${VARIABLE:-default} is expanded",
    ),
    Key(
        "REINIT_HEADS",
        False,
        "if the classes of MODEL.WEIGHT differ from the data set's, copy the class-dependent "
        "weights of categories with the same name and initialize the others; False: report an "
        "error",
    ),
    Key("MASK_ON", False, "predict instance masks"),
    Key("KEYPOINT_ON", False, "predict keypoints"),
    Key("LOAD_PROPOSALS", False, "Fast R-CNN: read DATASETS.PROPOSAL_FILES_* instead of an RPN"),
    Key("CLS_AGNOSTIC_BBOX_REG", False, "predict one box per RoI instead of one per class"),
    Key(
        "CONVENTION",
        "",
        "framework whose numeric conventions the model follows (docs/conventions.md); empty: the "
        "framework of MODEL.WEIGHT, or detlite",
        one_of("", *CONVENTIONS),
    ),
    Key(
        "CONVENTION_OVERRIDE",
        (),
        "single conventions to change, such as [resize=floor, anchor_offset=0.5]",
        convention_fields,
    ),
)

KEYS = (*_RUN, *_MODEL)
