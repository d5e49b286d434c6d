"""The schema: every config key with its default, its valid values and its description.

Names and defaults follow maskrcnn-benchmark, so that its YAML files keep their meaning; its keys
that only restate others are in `config/maskrcnn_benchmark.py`. `docs/config.md` is generated from
both.
"""

from . import anchors, backbone, data, evaluation, general, roi_heads, solver
from .key import Key

__all__ = ["KEYS", "Key"]

KEYS: tuple[Key, ...] = (
    *general.KEYS,
    *backbone.KEYS,
    *anchors.KEYS,
    *roi_heads.KEYS,
    *data.KEYS,
    *solver.KEYS,
    *evaluation.KEYS,
)
