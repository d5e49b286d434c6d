"""Choices as a YAML file with a comment for each."""

from __future__ import annotations

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


def places(sets: Mapping[str, Source], how: str) -> list[Choice]:
    """Where the data are, and what a run makes of them.

    Args:
        sets: "train", and "val" if there is one.
        how: how the sets came about, in a sentence.
    """
    name = _name(sets["train"].images)
    root, entries = _catalog(sets, name)
    return [
        Choice("OUTPUT_DIR", f"output/{name}", "where a run leaves its files"),
        Choice("DATASETS.ROOT", root, f"{how}. The paths below are relative to this folder"),
        Choice("DATASETS.CATALOG", entries),
        Choice("DATASETS.TRAIN", [f"{name}_train"]),
        Choice(
            "DATASETS.TEST",
            [f"{name}_val"] if "val" in sets else [],
            "" if "val" in sets else "what is trained on would be measured as known",
        ),
    ]


def config_text(
    choices: Sequence[Choice], summary: str, base: str = "_base_/from_scratch_fpn.yaml"
) -> str:
    """The text of a config.

    Args:
        choices: its keys.
        summary: what the data and the machine are, in a sentence.
        base: the config that they go over.
    """
    lines = [
        *_comment(
            f"Written by `detlite init`: {summary}. Every key may be changed; `detlite train "
            "--config` and this file's name trains it, docs/config.md has all keys."
        ),
        f"_BASE_: {base}",
    ]
    tree: dict[str, Any] = {}
    for choice in choices:
        *sections, leaf = choice.key.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[leaf] = choice
    return "\n".join([*lines, *_lines(tree, 0)]) + "\n"


def _lines(tree: Mapping[str, Any], depth: int) -> list[str]:
    """A section's keys, values before sections."""
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
    """A value on one line, in YAML's flow style."""
    text = yaml.safe_dump(
        value, default_flow_style=True, width=float("inf"), sort_keys=False, allow_unicode=True
    )
    return text.removesuffix("\n").removesuffix("\n...")


def _catalog(sets: Mapping[str, Source], name: str) -> tuple[str, list[dict[str, str]]]:
    """DATASETS.ROOT, the folder that holds all of it, and the entries."""
    paths = [path for one in sets.values() for path in (one.annotations.parent, one.images)]
    root = Path(os.path.commonpath(paths))
    entries = [
        {
            "name": f"{name}_{split}",
            "annotations": one.annotations.relative_to(root).as_posix(),
            "images": one.images.relative_to(root).as_posix(),
        }
        for split, one in sets.items()
    ]
    return root.as_posix(), entries


def _name(images: Path) -> str:
    """What the data are called: the first folder from below that says something."""
    for part in reversed(images.parts):
        word = re.sub(r"\W+", "_", part).strip("_")
        if word and word.lower() not in ("images", "train", "val", "data", "jpegimages"):
            return word
    return "data"
