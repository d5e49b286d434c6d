"""Architectures of maskrcnn-benchmark's fbnet_modeldef.py, and a parser of its format."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BlockSpec:
    """Position of a block, which determines its name, and its options. Stride -2 upsamples."""

    stage: int
    number: int
    kernel: int
    expansion: int
    channels: int
    stride: int


@dataclass(frozen=True)
class Architecture:
    """Stages of blocks."""

    first: tuple[int, int]  # channels and stride of the 3x3 convolution before them
    stages: Sequence[Sequence[tuple[Any, ...]]]  # kernel, expansion, channels, stride of each block
    parts: Mapping[str, Sequence[int]]  # stages of "backbone", "rpn", "bbox", "mask", "kpts"
    last: int = 0  # channels of the 1x1 convolution after the box head, before its LAST_SCALE

    def blocks(self, part: str) -> list[BlockSpec]:
        """Return the blocks of a part."""
        if part not in self.parts:
            raise ValueError(
                f"the architecture of MODEL.FBNET has no stages for {part!r}, only for "
                f"{', '.join(self.parts)}: use another head"
            )
        return [
            BlockSpec(stage, number, *block)
            for stage in self.parts[part]
            for number, block in enumerate(self.stages[stage])
        ]


def _expand(groups: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Repeat equal blocks (..., count, stride); only the first has the stride."""
    return [
        (*block, stride if k == 0 else 1) for *block, count, stride in groups for k in range(count)
    ]


_KERNELS = {f"ir_k{size}": size for size in (1, 3, 5, 7)}
# Equal blocks of each stage: kernel, expansion, channels, number of blocks, stride of the first.
_DEFAULT_BODY = (
    [(3, 1, 16, 1, 1)],
    [(3, 6, 24, 2, 2)],
    [(3, 6, 32, 3, 2)],
    [(3, 6, 64, 4, 2), (3, 6, 96, 3, 1)],
)
_TABLE: dict[str, tuple[int, tuple[Any, ...], dict[str, Sequence[int]]]] = {
    "default": (
        32,
        (
            *_DEFAULT_BODY,
            [(3, 4, 160, 1, 2), (3, 6, 160, 2, 1), (3, 6, 240, 1, 1)],
            [(3, 6, 96, 3, 1)],
            [(3, 4, 160, 1, 1), (3, 6, 160, 3, 1), (3, 3, 80, 1, -2)],
        ),
        {"bbox": [4], "rpn": [5], "mask": [6]},
    ),
    "xirb16d_dsmask": (
        16,
        (
            [(3, 1, 16, 1, 1)],
            [(3, 6, 32, 2, 2)],
            [(3, 6, 48, 3, 2)],
            [(3, 6, 96, 4, 2), (3, 6, 128, 3, 1)],
            [(3, 4, 128, 1, 2), (3, 6, 128, 2, 1), (3, 6, 160, 1, 1)],
            [
                (3, 4, 128, 1, 2),
                (3, 6, 128, 2, 1),
                (3, 6, 128, 1, -2),
                (3, 3, 64, 1, -2),
            ],
            [(3, 6, 128, 3, 1)],
        ),
        {"bbox": [4], "mask": [5], "rpn": [6]},
    ),
    "mobilenet_v2": (
        32,
        (*_DEFAULT_BODY, [(3, 6, 160, 3, 1), (3, 6, 320, 1, 1)]),
        {"bbox": [4]},
    ),
    "cham_v1a": (
        32,
        (
            [(3, 1, 24, 1, 1)],
            [(7, 4, 48, 2, 2)],
            [(3, 7, 64, 5, 2)],
            [(5, 12, 56, 7, 2), (3, 8, 88, 5, 1)],
            [(3, 7, 152, 4, 2), (3, 10, 104, 1, 1)],
            [(3, 8, 88, 3, 1)],
        ),
        {"bbox": [4], "rpn": [5]},
    ),
    "cham_v2": (
        32,
        (
            [(3, 1, 24, 1, 1)],
            [(5, 8, 32, 4, 2)],
            [(7, 5, 48, 6, 2)],
            [(5, 9, 56, 3, 2), (3, 6, 56, 6, 1)],
            [(3, 2, 160, 6, 2), (3, 6, 112, 1, 1)],
            [(3, 6, 56, 1, 1)],
        ),
        {"bbox": [4], "rpn": [5]},
    ),
}
ARCHITECTURES = {
    name: Architecture((first, 2), list(map(_expand, stages)), {"backbone": range(4), **parts})
    for name, (first, stages, parts) in _TABLE.items()
}


def parse_architecture(text: str) -> Architecture:
    """Parse an architecture from JSON in the format of maskrcnn-benchmark's fbnet_modeldef.py."""
    try:
        content = json.loads(text)
        config, operators = content["block_cfg"], content["block_op_type"]
        stages = [
            [(_KERNELS[name], *block) for name, block in zip(names, _expand(rows), strict=True)]
            for rows, names in zip(config["stages"], operators, strict=True)
        ]
        every = range(len(stages))
        names = ("backbone", "rpn", "bbox", "mask", "kpts")
        parts = {
            part: [every[number] for number in config[part]] for part in names if config.get(part)
        }
        parts.setdefault("backbone", list(every[:-1]))
        channels, stride = config["first"]
        return Architecture((channels, stride), stages, parts, config["last"][0])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(
            f"MODEL.FBNET.ARCH_DEF, with the operators {', '.join(_KERNELS)}, is not JSON such as "
            '{"block_op_type": [["ir_k3"], ...], '
            '"block_cfg": {"first": [32, 2], "stages": [[[1, 16, 1, 1]], ...], "last": [0, 0.0], '
            f'"backbone": [0], "rpn": [1], "bbox": [2]}}}}: {error!r}'
        ) from error
