"""Architectures of maskrcnn-benchmark's fbnet_modeldef.py, and a parser of its format."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class BlockSpec:
    """Position of a block, which determines its name, and its options."""

    stage: int
    number: int
    operator: str
    expansion: int
    channels: int
    stride: int


# Equal blocks: operator, expansion, channels, number of blocks, stride of the first (-2: upsample).
BlockGroup = tuple[str, int, int, int, int]


@dataclass(frozen=True)
class Architecture:
    """Stages of blocks.

    Attributes:
        first: channels and stride of the 3x3 convolution before them.
        stages: block groups of each stage.
        parts: stage numbers of each part: "backbone", "rpn", "bbox", "mask", "kpts".
        last: channels of the 1x1 convolution after a head, before scaling by its LAST_SCALE.
    """

    first: tuple[int, int]
    stages: tuple[tuple[BlockGroup, ...], ...]
    parts: Mapping[str, tuple[int, ...]]
    last: int = 0

    def blocks(self, part: str, numbers: Sequence[int] = ()) -> list[BlockSpec]:
        """Return the blocks of a part: all, or those of each stage with one of the `numbers`."""
        if part not in self.parts:
            raise ValueError(
                f"the architecture of MODEL.FBNET has no stages for {part!r}, only for "
                f"{', '.join(self.parts)}: use another head"
            )
        blocks = []
        for stage in self.parts[part]:
            own = [
                (operator, expansion, channels, stride if k == 0 else 1)
                for operator, expansion, channels, count, stride in self.stages[stage]
                for k in range(count)
            ]
            blocks += [BlockSpec(stage, number, *block) for number, block in enumerate(own)]
        return [block for block in blocks if not numbers or block.number in numbers]


_DEFAULT_BODY: tuple[tuple[BlockGroup, ...], ...] = (
    (("ir_k3", 1, 16, 1, 1),),
    (("ir_k3", 6, 24, 2, 2),),
    (("ir_k3", 6, 32, 3, 2),),
    (("ir_k3", 6, 64, 4, 2), ("ir_k3", 6, 96, 3, 1)),
)
_BODY = (0, 1, 2, 3)

ARCHITECTURES = {
    "default": Architecture(
        (32, 2),
        (
            *_DEFAULT_BODY,
            (("ir_k3", 4, 160, 1, 2), ("ir_k3", 6, 160, 2, 1), ("ir_k3", 6, 240, 1, 1)),
            (("ir_k3", 6, 96, 3, 1),),
            (("ir_k3", 4, 160, 1, 1), ("ir_k3", 6, 160, 3, 1), ("ir_k3", 3, 80, 1, -2)),
        ),
        {"backbone": _BODY, "bbox": (4,), "rpn": (5,), "mask": (6,)},
    ),
    "xirb16d_dsmask": Architecture(
        (16, 2),
        (
            (("ir_k3", 1, 16, 1, 1),),
            (("ir_k3", 6, 32, 2, 2),),
            (("ir_k3", 6, 48, 3, 2),),
            (("ir_k3", 6, 96, 4, 2), ("ir_k3", 6, 128, 3, 1)),
            (("ir_k3", 4, 128, 1, 2), ("ir_k3", 6, 128, 2, 1), ("ir_k3", 6, 160, 1, 1)),
            (
                ("ir_k3", 4, 128, 1, 2),
                ("ir_k3", 6, 128, 2, 1),
                ("ir_k3", 6, 128, 1, -2),
                ("ir_k3", 3, 64, 1, -2),
            ),
            (("ir_k3", 6, 128, 3, 1),),
        ),
        {"backbone": _BODY, "bbox": (4,), "mask": (5,), "rpn": (6,)},
    ),
    "mobilenet_v2": Architecture(
        (32, 2),
        (*_DEFAULT_BODY, (("ir_k3", 6, 160, 3, 1), ("ir_k3", 6, 320, 1, 1))),
        {"backbone": _BODY, "bbox": (4,)},
    ),
    "cham_v1a": Architecture(
        (32, 2),
        (
            (("ir_k3", 1, 24, 1, 1),),
            (("ir_k7", 4, 48, 2, 2),),
            (("ir_k3", 7, 64, 5, 2),),
            (("ir_k5", 12, 56, 7, 2), ("ir_k3", 8, 88, 5, 1)),
            (("ir_k3", 7, 152, 4, 2), ("ir_k3", 10, 104, 1, 1)),
            (("ir_k3", 8, 88, 3, 1),),
        ),
        {"backbone": _BODY, "bbox": (4,), "rpn": (5,)},
    ),
    "cham_v2": Architecture(
        (32, 2),
        (
            (("ir_k3", 1, 24, 1, 1),),
            (("ir_k5", 8, 32, 4, 2),),
            (("ir_k7", 5, 48, 6, 2),),
            (("ir_k5", 9, 56, 3, 2), ("ir_k3", 6, 56, 6, 1)),
            (("ir_k3", 2, 160, 6, 2), ("ir_k3", 6, 112, 1, 1)),
            (("ir_k3", 6, 56, 1, 1),),
        ),
        {"backbone": _BODY, "bbox": (4,), "rpn": (5,)},
    ),
}


def parse_architecture(text: str) -> Architecture:
    """Parse an architecture from JSON in the format of maskrcnn-benchmark's fbnet_modeldef.py."""
    try:
        content = json.loads(text)
        config, operators = content["block_cfg"], content["block_op_type"]
        stages = []
        for rows, names in zip(config["stages"], operators, strict=True):
            expanded = [
                (expansion, channels, stride if k == 0 else 1)
                for expansion, channels, count, stride in rows
                for k in range(count)
            ]
            stages.append(
                tuple(
                    (name, expansion, channels, 1, stride)
                    for name, (expansion, channels, stride) in zip(names, expanded, strict=True)
                )
            )
        every = range(len(stages))
        parts = {
            part: tuple(every[number] for number in config[part])
            for part in ("backbone", "rpn", "bbox", "mask", "kpts")
            if config.get(part)
        }
        parts.setdefault("backbone", tuple(every[:-1]))
        channels, stride = config["first"]
        return Architecture((channels, stride), tuple(stages), parts, config["last"][0])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(
            'MODEL.FBNET.ARCH_DEF is not JSON such as {"block_op_type": [["ir_k3"], ...], '
            '"block_cfg": {"first": [32, 2], "stages": [[[1, 16, 1, 1]], ...], "last": [0, 0.0], '
            f'"backbone": [0], "rpn": [1], "bbox": [2]}}}}: {error!r}'
        ) from error
