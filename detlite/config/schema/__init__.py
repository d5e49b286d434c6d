"""The schema: every config key with its default, its valid values and its description.

Names and defaults follow maskrcnn-benchmark, so that its YAML files keep their meaning; its keys
that only restate others are in `config/maskrcnn_benchmark.py`. `docs/config.md` is generated from
both.
"""

from dataclasses import replace

from detlite.config.key import Key

from . import model, run

__all__ = ["KEYS", "Key"]

KEYS = tuple(
    replace(key, name=f"{section}.{key.name}".removeprefix("."), doc=doc)
    for module in (model, run)
    for section, keys in module.SECTIONS.items()
    for key, doc in keys.items()
)
