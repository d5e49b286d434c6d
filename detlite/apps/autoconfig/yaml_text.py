"""Write choices as a YAML file with a comment for each reason."""

import math
import os
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from detlite.apps.dataset_formats import Source

from .dataset_facts import Choice


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
    reason = f"{summary}. The paths below are relative to this folder"
    return [
        Choice("OUTPUT_DIR", f"output/{name}", "folder for the files of a run"),
        Choice("DATASETS.ROOT", root.as_posix(), reason),
        Choice("DATASETS.CATALOG", entries),
        Choice("DATASETS.TRAIN", [f"{name}_train"]),
        Choice("DATASETS.TEST", [f"{name}_val"] * ("val" in sets), "not the training images"),
    ]


def config_text(choices: Sequence[Choice], summary: str, base: str) -> str:
    """Return the text of a config file whose keys extend `base`, unless that is ""."""
    tree: dict[str, Any] = {}
    for choice in choices:
        *sections, leaf = choice.key.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[leaf] = choice
    intro = (
        f"Written by `detlite init` for {summary}. All keys may be changed; docs/config.md "
        "describes them. Train with `detlite train --config` and the name of this file."
    )
    lines = [*_comment(intro, ""), *([f"_BASE_: {base}"] if base else []), *_section(tree, "")]
    return "\n".join(lines) + "\n"


def _section(section: Mapping[str, Any], indent: str) -> Iterator[str]:
    """Yield the lines of a section, whose values are choices or sections."""
    for name, node in section.items():
        if not isinstance(node, Choice):
            yield from ([] if indent else [""])
            yield f"{indent}{name}:"
            yield from _section(node, indent + "  ")
            continue
        yield from _comment(node.reason, indent)
        if isinstance(node.value, list) and dict in map(type, node.value):
            yield f"{indent}{name}:"
            yield from (f"{indent}- {_in_one_line(row)}" for row in node.value)
        else:
            yield f"{indent}{name}: {_in_one_line(node.value)}"


def _in_one_line(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True,
                          width=math.inf)  # fmt: skip
    return text.removesuffix("\n...\n").strip()


def _comment(text: str, indent: str) -> list[str]:
    start = f"{indent}# "
    return textwrap.wrap(text, 98, initial_indent=start, subsequent_indent=start)


def _dataset_name(images: Path) -> str:
    """Return the name of the innermost folder that is not a generic one such as "images"."""
    for part in reversed(images.parts):
        word = re.sub(r"\W+", "_", part).strip("_")
        if word and word.lower() not in ("images", "train", "val", "data", "jpegimages"):
            return word
    return "data"
