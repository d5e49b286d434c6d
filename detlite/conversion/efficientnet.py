"""EfficientNet-PyTorch of Luke Melas-Kyriazi: its classifiers, as timm builds them (`tf_...`).

There the blocks are counted through, here by stage: a stage begins where a block changes the number
of channels, which in every EfficientNet (arXiv 1905.11946, table 1) its first block does.
"""

from __future__ import annotations

import re

from .checkpoint_source import Entries, Source, State, rename
from .timm import BODY

_EXPANDING = [
    (r"_expand_conv\.", "conv_pw."),
    (r"_bn0\.", "bn1."),
    (r"_depthwise_conv\.", "conv_dw."),
    (r"_bn1\.", "bn2."),
    (r"_project_conv\.", "conv_pwl."),
    (r"_bn2\.", "bn3."),
]
# Blocks that do not expand the channels first.
_SEPARABLE = [
    (r"_depthwise_conv\.", "conv_dw."),
    (r"_project_conv\.", "conv_pw."),
]
_ANY_BLOCK = [(r"_se_(reduce|expand)\.", r"se.conv_\1."), (r"_bn([12])\.", r"bn\1.")]
_OUTSIDE = [
    (r"^_conv_stem\.", "conv_stem."),
    (r"^_bn0\.", "bn1."),
    (r"^_conv_head\.", "conv_head."),
    (r"^_bn1\.", "bn2."),
    (r"^_fc\.", "classifier."),
]
_BLOCK = re.compile(r"^_blocks\.(\d+)\.(.+)$")


def _by_stage(_state: State, entries: Entries) -> State:
    places = _places(entries)
    renamed = {}
    for name, value in entries.items():
        if block := _BLOCK.match(name):
            number = int(block[1])
            expands = f"_blocks.{number}._expand_conv.weight" in entries
            rules = [*(_EXPANDING if expands else _SEPARABLE), *_ANY_BLOCK]
            # Each norm is renamed once: _bn0 becomes bn1, which is no _bn1.
            renamed[f"{BODY}blocks.{places[number]}.{rename(block[2], rules)}"] = value
        else:
            renamed[BODY + rename(name, _OUTSIDE)] = value
    return renamed


def _places(entries: Entries) -> dict[int, str]:
    """ "<stage>.<block>" of each block."""
    numbers = sorted({int(block[1]) for block in map(_BLOCK.match, entries) if block})
    places, stage, within = {}, -1, 0
    before = len(entries["_conv_stem.weight"])
    for number in numbers:
        after = len(entries[f"_blocks.{number}._project_conv.weight"])
        stage, within = (stage, within + 1) if after == before and stage >= 0 else (stage + 1, 0)
        places[number] = f"{stage}.{within}"
        before = after
    return places


EFFICIENTNET = Source(
    name="efficientnet-pytorch",
    convention="",
    recognise=lambda names: "_conv_stem.weight" in names and "_blocks.0._bn1.weight" in names,
    rules=[],
    configure=lambda *_: {},
    adapt=_by_stage,
)
