"""Convert classifiers to timm backbones (`modeling/backbone/timm/backbone.py`).

The classifiers are from timm, or from EfficientNet-PyTorch by Luke Melas-Kyriazi (timm's `tf_...`
models). EfficientNet-PyTorch numbers blocks over all stages, timm within each stage. In every
EfficientNet (arXiv 1905.11946, table 1), only the first block of a stage changes the number of
channels.
"""

import re

from detlite.checkpoint.contents import TIMM_PREFIX

from .checkpoint_source import CheckpointSource, RawStateDict, StateDict, rename

# Its models have no names in common, so the user must name this source.
TIMM = CheckpointSource(rules=[(r"^", TIMM_PREFIX)])

_EXPANDING = [
    (r"_expand_conv\.", "conv_pw."), (r"_bn0\.", "bn1."), (r"_depthwise_conv\.", "conv_dw."),
    (r"_bn1\.", "bn2."), (r"_project_conv\.", "conv_pwl."), (r"_bn2\.", "bn3."),
]  # fmt: skip
# Blocks without expansion.
_SEPARABLE = [(r"_depthwise_conv\.", "conv_dw."), (r"_project_conv\.", "conv_pw.")]
_ANY_BLOCK = [(r"_se_(reduce|expand)\.", r"se.conv_\1."), (r"_bn([12])\.", r"bn\1.")]
_OUTSIDE_BLOCKS = [
    (r"^_conv_stem\.", "conv_stem."), (r"^_bn0\.", "bn1."), (r"^_conv_head\.", "conv_head."),
    (r"^_bn1\.", "bn2."), (r"^_fc\.", "classifier."),
]  # fmt: skip
_BLOCK = re.compile(r"^_blocks\.(\d+)\.(.+)$")


def _number_by_stage(_state: StateDict, raw: RawStateDict) -> StateDict:
    numbers = _stage_and_block(raw)
    renamed = {}
    for name, value in raw.items():
        if block := _BLOCK.match(name):
            number = int(block[1])
            expands = f"_blocks.{number}._expand_conv.weight" in raw
            rules = [*(_EXPANDING if expands else _SEPARABLE), *_ANY_BLOCK]
            renamed[f"{TIMM_PREFIX}blocks.{numbers[number]}.{rename(block[2], rules)}"] = value
        else:
            renamed[TIMM_PREFIX + rename(name, _OUTSIDE_BLOCKS)] = value
    return renamed


def _stage_and_block(raw: RawStateDict) -> dict[int, str]:
    """Map the number of each block to "<stage>.<block>"."""
    numbers, stage, block = {}, -1, 0
    channels = len(raw["_conv_stem.weight"])
    for number in sorted({int(match[1]) for match in map(_BLOCK.match, raw) if match}):
        previous, channels = channels, len(raw[f"_blocks.{number}._project_conv.weight"])
        stage, block = (stage, block + 1) if channels == previous and stage >= 0 else (stage + 1, 0)
        numbers[number] = f"{stage}.{block}"
    return numbers


EFFICIENTNET = CheckpointSource(
    names=r"^_blocks\.0\._bn1\.weight$.*^_conv_stem\.weight$",
    adapt=_number_by_stage,
)
