"""RegNets (https://arxiv.org/abs/2003.13678) of pycls and detectron2, as timm backbones.

The models are the same; only the names of the weights differ.
"""

from detlite.checkpoint.files import TIMM_PREFIX

from .checkpoint_source import ConfigValues, StateDict

_BLOCK = r"^(backbone\.body\.net\.s\d\.b\d+)\."
# detectron2 uses the names of pycls.
REGNET_RULES = [
    (r"^backbone\.bottom_up\.(stem\.(?:conv|bn)|s\d\.b\d+)\.", rf"{TIMM_PREFIX}\1."),
    (rf"{_BLOCK}proj\.", r"\1.downsample.conv."),
    (rf"{_BLOCK}bn\.", r"\1.downsample.bn."),
    *((rf"{_BLOCK}f\.{name}\.", rf"\1.conv{n}.conv.") for n, name in enumerate("abc", 1)),
    *((rf"{_BLOCK}f\.{name}_bn\.", rf"\1.conv{n}.bn.") for n, name in enumerate("abc", 1)),
    (rf"{_BLOCK}f\.se\.f_ex\.0\.", r"\1.se.fc1."),
    (rf"{_BLOCK}f\.se\.f_ex\.2\.", r"\1.se.fc2."),
]
# timm's name -> channels of the four stages
REGNETS = {
    "regnetx_002": (24, 56, 152, 368),
    "regnetx_004": (32, 64, 160, 384),
    "regnetx_006": (48, 96, 240, 528),
    "regnetx_008": (64, 128, 288, 672),
    "regnetx_016": (72, 168, 408, 912),
    "regnetx_032": (96, 192, 432, 1008),
    "regnetx_040": (80, 240, 560, 1360),
    "regnetx_064": (168, 392, 784, 1624),
    "regnetx_080": (80, 240, 720, 1920),
    "regnety_002": (24, 56, 152, 368),
    "regnety_004": (48, 104, 208, 440),
    "regnety_006": (48, 112, 256, 608),
    "regnety_008": (64, 128, 320, 768),
    "regnety_016": (48, 120, 336, 888),
    "regnety_032": (72, 216, 576, 1512),
    "regnety_040": (128, 192, 512, 1088),
    "regnety_064": (144, 288, 576, 1296),
    "regnety_080": (168, 448, 896, 2016),
}


def is_regnet(state: StateDict) -> bool:
    return f"{TIMM_PREFIX}s1.b1.conv1.conv.weight" in state


def regnet_config(state: StateDict, ending: str) -> ConfigValues:
    """Infer the config of a RegNet backbone; `ending` is the end of MODEL.BACKBONE.CONV_BODY.

    Raises:
        KeyError, ValueError: a weight is missing, or the RegNet is unknown.
    """
    convs = [f"{TIMM_PREFIX}s{stage}.b1.conv3.conv.weight" for stage in range(1, 5)]
    widths = tuple(len(state[conv]) for conv in convs)
    prefix = "regnety_" if f"{TIMM_PREFIX}s1.b1.se.fc1.weight" in state else "regnetx_"
    name = next((n for n, w in REGNETS.items() if n.startswith(prefix) and w == widths), None)
    if name is None:
        raise ValueError(
            f"the backbone is a RegNet with stages of {list(widths)} channels, which is none of "
            f"timm's {', '.join(REGNETS)}"
        )
    is_trained = f"{TIMM_PREFIX}stem.bn.num_batches_tracked" in state
    return {
        "MODEL.BACKBONE.CONV_BODY": f"timm/{name}-{ending}",
        "MODEL.RESNETS.NORM": "BN" if is_trained else "FrozenBN",
    }
