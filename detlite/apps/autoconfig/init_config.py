"""The config file that `detlite init` writes for a dataset, with a comment for each reason."""

import math
import os
import re
import textwrap
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from detlite.apps.dataset_formats import Source, find_sets
from detlite.config import load_config
from detlite.config.loading import flatten
from detlite.data import explain_dead_loader
from detlite.data.datasets.build import build_test_datasets, build_train_dataset, findings_of
from detlite.data.images.pixels import build_image_options
from detlite.threads import limit_threads

from .configs import derive_config
from .dataset_facts import BASE, Choice


def init_config(options: Namespace, log: Callable[[str], None]) -> str:
    """Return the text of a config for a dataset, with the reason for each key.

    Args:
        options: those of `detlite init`.
        log: called with texts about how the data were read, and what training will not use.

    Raises:
        CheckpointError, ConfigError, DataError: see `find_sets` and `derive_config`.
    """
    weights, overrides = options.weights, options.overrides
    upright = build_image_options(load_config(None, overrides)).exif_orientation
    sets, text = find_sets(
        options.data, options.val, options.images, options.annotations, options.masks,
        options.skip_bad, upright, options.single_class, options.group_by,
    )  # fmt: skip
    log(text)
    fixed = dataset_choices(sets, text)
    if weights:
        weights = str(Path(weights).absolute()) if Path(weights).is_file() else weights
        fixed += [
            Choice("MODEL.WEIGHT", weights, "the other keys of MODEL and INPUT are theirs"),
            Choice("MODEL.REINIT_HEADS", True, "keep the heads of categories with the same name"),
        ]
    if options.minutes:
        fixed.append(Choice("SOLVER.MAX_MINUTES", options.minutes))
    if weights or options.minutes:
        limit_threads()
    opts = [word for choice in fixed for word in (choice.key, choice.value)] + overrides
    with explain_dead_loader():
        cfg, choices, facts = derive_config(opts, weights, log)
    # What training will skip, reinterpret or switch off because of the data.
    parts = build_train_dataset(cfg).parts
    log(findings_of([*parts, *build_test_datasets(cfg)], parts))
    reasons = {choice.key: choice.reason for choice in fixed}
    reasons |= dict.fromkeys(overrides[::2], "given on the command line")
    for choice in choices:
        reasons.pop(choice.key, None)  # the choices are the last keys of the file
        reasons[choice.key] = choice.reason
    values, keys = dict(flatten(cfg)), [*reasons]
    if weights:  # without a base
        defaults = dict(flatten(load_config(None)))
        keys = [key for key in values if values[key] != defaults[key]]
    written = [Choice(key, values[key], reasons.get(key, "")) for key in keys if key in values]
    return config_text(written, facts.summary, "" if weights else BASE)


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
