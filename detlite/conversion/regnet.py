"""RegNets (https://arxiv.org/abs/2003.13678) of pycls and detectron2, as timm backbones.

The models are the same; only the names of the weights differ.
"""

from detlite.checkpoint.contents import TIMM_PREFIX

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
# Size in timm's name -> channels of the four stages of regnetx and of regnety
REGNETS = {
    "002": ((24, 56, 152, 368), (24, 56, 152, 368)),
    "004": ((32, 64, 160, 384), (48, 104, 208, 440)),
    "006": ((48, 96, 240, 528), (48, 112, 256, 608)),
    "008": ((64, 128, 288, 672), (64, 128, 320, 768)),
    "016": ((72, 168, 408, 912), (48, 120, 336, 888)),
    "032": ((96, 192, 432, 1008), (72, 216, 576, 1512)),
    "040": ((80, 240, 560, 1360), (128, 192, 512, 1088)),
    "064": ((168, 392, 784, 1624), (144, 288, 576, 1296)),
    "080": ((80, 240, 720, 1920), (168, 448, 896, 2016)),
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
    is_y = f"{TIMM_PREFIX}s1.b1.se.fc1.weight" in state
    size = next((size for size, rows in REGNETS.items() if rows[is_y] == widths), None)
    if size is None:
        raise ValueError(
            f"the backbone is a RegNet with stages of {list(widths)} channels, which is none of "
            f"timm's models {', '.join(REGNETS)}"
        )
    is_trained = f"{TIMM_PREFIX}stem.bn.num_batches_tracked" in state
    return {
        "MODEL.BACKBONE.CONV_BODY": f"timm/regnet{'xy'[is_y]}_{size}-{ending}",
        "MODEL.RESNETS.NORM": "BN" if is_trained else "FrozenBN",
    }
