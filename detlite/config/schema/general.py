"""Keys of the run and of the detector as a whole."""

from __future__ import annotations

from detlite.config.checks import convention_fields, in_range, one_of, strings
from detlite.conventions import CONVENTIONS

from .key import Key, section

_RUN = (
    Key("IMPORTS", (), "modules or .py files imported first: your own registered parts", strings),
    Key("OUTPUT_DIR", "output", "where a run leaves its files"),
    Key(
        "SEED",
        0,
        "seed of sampling, augmentation and initialisation, below 2^63",
        in_range(0, 2**63 - 2**16),  # each process adds its number
    ),
    Key(
        "DTYPE",
        "float32",
        "arithmetic of the forward pass (torch.amp); auto: bfloat16 where the processor (AMX or "
        "AVX512-BF16) or the GPU is fast at it, else float32",
        one_of("auto", "float32", "float16", "bfloat16"),
    ),
)
_MODEL = section(
    "MODEL",
    Key(
        "META_ARCHITECTURE",
        "GeneralizedRCNN",
        "GeneralizedRCNN, RetinaNet, ProposalNetwork (an RPN without heads) or a registered "
        "detector",
    ),
    Key(
        "DEVICE",
        "auto",
        "'cpu', 'cuda', 'cuda:1', or another that torch sees ('mps', 'xpu'; docs/devices.md); "
        "auto: CUDA when there is one",
    ),
    Key(
        "MEMORY_FORMAT",
        "channels_last",
        "order of images, weights and feature maps in memory; contiguous gives torchvision's "
        "numbers to the last bit, and is some 15 % slower on a CPU",
        one_of("channels_last", "contiguous"),
    ),
    Key(
        "WEIGHT",
        "",
        "checkpoint to start from: a path, or a name that starts with https://, torchvision://, "
        "detectron2://, catalog://, timm://, hf:// or package://; empty: from scratch",
    ),
    Key(
        "WEIGHT_ROOT",
        "${XDG_CACHE_HOME:-~/.cache}/detlite/weights",
        "folder of downloaded weights; may hold ${VARIABLE:-default}",
    ),
    Key(
        "REINIT_HEADS",
        False,
        "where the classes of MODEL.WEIGHT differ, take what categories of the same name have in "
        "the class-dependent layers and initialise the rest of these anew, instead of refusing it",
    ),
    Key("MASK_ON", False, "predict instance masks"),
    Key("KEYPOINT_ON", False, "predict keypoints"),
    Key(
        "LOAD_PROPOSALS",
        False,
        "Fast R-CNN: no RPN; regions come from DATASETS.PROPOSAL_FILES_TRAIN and _TEST",
    ),
    Key("CLS_AGNOSTIC_BBOX_REG", False, "one box regression for all classes"),
    Key(
        "CONVENTION",
        "",
        "the framework whose ways of counting the detector follows; empty: that which trained "
        "MODEL.WEIGHT, or detlite",
        one_of("", *CONVENTIONS),
    ),
    Key(
        "CONVENTION_OVERRIDE",
        (),
        "single fields of it, for experiments: [resize=floor, anchor_offset=0.5]",
        convention_fields,
    ),
)

KEYS = (*_RUN, *_MODEL)
