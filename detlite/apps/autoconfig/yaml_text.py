"""Write choices as a YAML file with a comment for each reason."""

import math
import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from detlite.apps.dataset_formats import Source

from .dataset_facts import BASE, Choice

_WIDTH = 98
_KEY = re.compile(r"( *)([A-Z][A-Z0-9_]*):")


class _Dumper(yaml.SafeDumper):
    """Writes lists on one line, except those of mappings."""


def _represent_list(dumper: yaml.SafeDumper, data: list[Any]) -> yaml.Node:
    flow = not any(isinstance(item, dict) for item in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flow)


_Dumper.add_representer(list, _represent_list)


def dataset_choices(sets: Mapping[str, Source], summary: str) -> list[Choice]:
    """Return the keys that name the datasets and the output folder.

    `sets` are "train", and "val" if there is one; `summary` describes how they were found.
    """
    name = _dataset_name(sets["train"].images)
    paths = [path for s in sets.values() for path in (s.annotations.parent, s.images)]
    root = Path(os.path.commonpath(paths))
    entries = [
        {
            "name": f"{name}_{split}",
            "annotations": source.annotations.relative_to(root).as_posix(),
            "images": source.images.relative_to(root).as_posix(),
        }
        for split, source in sets.items()
    ]
    no_test = "" if "val" in sets else "an evaluation on the training images would be misleading"
    reason = f"{summary}. The paths below are relative to this folder"
    return [
        Choice("OUTPUT_DIR", f"output/{name}", "folder for the files of a run"),
        Choice("DATASETS.ROOT", root.as_posix(), reason),
        Choice("DATASETS.CATALOG", entries),
        Choice("DATASETS.TRAIN", [f"{name}_train"]),
        Choice("DATASETS.TEST", [f"{name}_val"] * ("val" in sets), no_test),
    ]


def config_text(choices: Sequence[Choice], summary: str, base: str = BASE) -> str:
    """Return the text of a config file whose keys extend `base`, unless that is ""."""
    tree: dict[str, Any] = {"_BASE_": base} if base else {}
    for choice in choices:
        *sections, leaf = choice.key.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[leaf] = choice.value
    reasons = {choice.key: choice.reason for choice in choices}
    lines = _comment(
        f"Written by `detlite init` for {summary}. All keys may be changed; docs/config.md "
        "describes them. Train with `detlite train --config` and the name of this file."
    )
    path: list[str] = []
    dumped = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=math.inf)
    for line in dumped.splitlines():
        if match := _KEY.match(line):
            indent, key = match.groups()
            path = [*path[: len(indent) // 2], key]
            lines += (
                [""] if line == f"{key}:" else _comment(reasons.get(".".join(path), ""), indent)
            )
        lines.append(line)
    return "\n".join(lines) + "\n"


def _comment(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
    )


def _dataset_name(images: Path) -> str:
    """Return the name of the innermost folder that is not a generic one such as "images"."""
    for part in reversed(images.parts):
        word = re.sub(r"\W+", "_", part).strip("_")
        if word and word.lower() not in ("images", "train", "val", "data", "jpegimages"):
            return word
    return "data"
