"""Narrow state dicts with the names of other frameworks' models.

`state_dicts.json` has the name and shape of each weight of each model: ResNets with 8 channels in
the stem and 16 in res2, pyramids of 8 channels, and 4 categories.
"""

import json
import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from detlite.conversion.convert import convert

STEM, RES2, PYRAMID, CLASSES = 8, 16, 8, 5
StateDict = dict[str, Tensor]
# Factors of the last layers and of the first one that lead to scores between 0 and 1.
_GAINS = {"stem.": 0.005, "predictor": 0.2, "logits": 0.2, "deltas": 0.2, "_pred": 0.2,
          "cls_score": 0.2, "offset": 0.2}  # fmt: skip


@cache
def recorded_shapes() -> dict[str, dict[str, list[int]]]:
    """Return the shapes of all models, by model and name."""
    content: Any = json.loads(Path(__file__).with_name("state_dicts.json").read_text())
    return content


def state_dict(model: str) -> StateDict:
    """Make weights that depend on their names only, in the default dtype."""
    state = {name: _weight(name, shape) for name, shape in recorded_shapes()[model].items()}
    if model.startswith("maskrcnn-benchmark, C4"):
        return state | cell_anchors([(32.0, 64.0, 128.0, 256.0, 512.0)], (0.5, 1.0, 2.0), [16])
    if model.startswith("maskrcnn-benchmark, FPN"):
        sizes, strides = [[32.0], [64.0], [128.0], [256.0], [512.0]], [4, 8, 16, 32, 64]
        return state | cell_anchors(sizes, (0.5, 1.0, 2.0), strides)
    return state


def config_of(content: Any, source: str) -> dict[str, Any]:
    """Return the keys of the config of a converted checkpoint."""
    config: dict[str, Any] = yaml.safe_load(convert(content, source).config)
    return config


def _weight(name: str, shape: list[int]) -> Tensor:
    if name.endswith("num_batches_tracked"):
        return torch.tensor(7)
    random = np.random.Generator(np.random.Philox(zlib.crc32(name.encode())))
    value = torch.from_numpy(random.standard_normal(shape)).to(torch.get_default_dtype())
    if "pos_" in name:  # of transformers
        return 0.5 * value
    if len(shape) < 2:
        if name.endswith((".weight", "running_var", "_s")):  # of norms; the last ones of a block
            mean = 0.3 if "conv3" in name or "c_bn" in name else 1.0
            return mean + 0.1 * value.clamp(-2, 2)
        return 0.1 * value
    transposed = any(part in name for part in ("deconv", "simfp_2.0", "simfp_2.3"))
    rows = value.flatten(1) - (0 if transposed else value.flatten(1).mean(dim=1, keepdim=True))
    fan_in = shape[0] if transposed else rows.shape[1]
    gain = next((gain for part, gain in _GAINS.items() if part in name), 1.0)
    return (gain * (2 / fan_in) ** 0.5 * rows).view(shape)


def cell_anchors(
    levels: Sequence[Sequence[float]], ratios: Sequence[float], strides: Sequence[int]
) -> StateDict:
    """Anchors of one cell as maskrcnn-benchmark stores them: they contain their last pixel."""
    cells = {}
    for level, (sizes, stride) in enumerate(zip(levels, strides, strict=True)):
        rows = []
        for ratio in ratios:
            width = round((stride**2 / ratio) ** 0.5)
            height = round(width * ratio)
            for size in sizes:
                x, y = (side * size / stride - 1 for side in (width, height))
                center = (stride - 1) / 2
                rows.append([center - x / 2, center - y / 2, center + x / 2, center + y / 2])
        cells[f"module.rpn.anchor_generator.cell_anchors.{level}"] = torch.tensor(rows)
    return cells


def make_images() -> Iterator[Tensor]:
    """Yield two images uint8 [3, H, W]."""
    for seed, size in enumerate(((9, 12), (12, 7))):
        coarse = np.random.RandomState(seed).randint(0, 256, (3, *size)).astype(np.uint8)
        yield torch.from_numpy(coarse.repeat(10, axis=1).repeat(10, axis=2))
