"""Write choices as a YAML file with a comment for each reason."""

import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from detlite.apps.dataset_formats import Source

from .dataset_facts import Choice

_WIDTH = 98


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
    no_test = "an evaluation on the training images would be misleading"
    return [
        Choice("OUTPUT_DIR", f"output/{name}", "folder for the files of a run"),
        Choice(
            "DATASETS.ROOT",
            root.as_posix(),
            f"{summary}. The paths below are relative to this folder",
        ),
        Choice("DATASETS.CATALOG", entries),
        Choice("DATASETS.TRAIN", [f"{name}_train"]),
        Choice("DATASETS.TEST", [f"{name}_val"] * ("val" in sets), no_test * ("val" not in sets)),
    ]


def config_text(
    choices: Sequence[Choice], summary: str, base: str = "_base_/from_scratch_fpn.yaml"
) -> str:
    """Return the text of a config file whose keys extend `base`, unless that is ""."""
    lines = _comment(
        f"Written by `detlite init` for {summary}. All keys may be changed; docs/config.md "
        "describes them. Train with `detlite train --config` and the name of this file."
    )
    lines += [f"_BASE_: {base}"] if base else []
    tree: dict[str, Any] = {}
    for choice in choices:
        *sections, leaf = choice.key.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[leaf] = choice
    return "\n".join([*lines, *_lines(tree, 0)]) + "\n"


def _lines(tree: Mapping[str, Any], depth: int) -> list[str]:
    """Return the lines of a section, values before subsections."""
    indent, lines = "  " * depth, []
    for key, node in sorted(tree.items(), key=lambda item: isinstance(item[1], dict)):
        if isinstance(node, dict):
            if depth == 0:
                lines.append("")
            lines += [f"{indent}{key}:", *_lines(node, depth + 1)]
            continue
        if node.reason:
            lines += _comment(node.reason, indent)
        if key == "CATALOG":
            lines += [f"{indent}{key}:", *(f"{indent}  - {_value(row)}" for row in node.value)]
        else:
            lines.append(f"{indent}{key}: {_value(node.value)}")
    return lines


def _comment(text: str, indent: str = "") -> list[str]:
    text = " ".join(text.split())
    return [f"{indent}# {line}" for line in textwrap.wrap(text, _WIDTH - len(indent))]


def _value(value: Any) -> str:
    """Format a value on one line, in YAML's flow style."""
    text = yaml.safe_dump(
        value, default_flow_style=True, width=float("inf"), sort_keys=False, allow_unicode=True
    )
    return text.removesuffix("\n").removesuffix("\n...")


def _dataset_name(images: Path) -> str:
    """Return the name of the innermost folder that is not a generic one such as "images"."""
    for part in reversed(images.parts):
        word = re.sub(r"\W+", "_", part).strip("_")
        if word and word.lower() not in ("images", "train", "val", "data", "jpegimages"):
            return word
    return "data"
