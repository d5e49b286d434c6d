"""Writes a config for a data set, every key with its reason, from what the data look like.

    detlite init --data photos > mine.yaml                  # a folder of any form that is known
    detlite init --data train.json --val val.json > mine.yaml
    detlite init --data photos --minutes 15 > mine.yaml     # what can be trained in that time here
    detlite init --data photos --coco photos.json           # only convert to COCO json
    detlite train --config mine.yaml

Forms: COCO json; folders of YOLO's, PASCAL VOC's, LabelMe's or mask files, which are written as
COCO json. Without --val one in five pictures, by a hash of their names, is set apart to
measure on. docs/init.md has the layouts and the rules.

Exit status: 0; 2 when the data cannot be used.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from detlite.config import ConfigError
from detlite.data import DataError, LoaderProcessError, naming_dead_loaders

_MOST_MINUTES = 525_600


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, without its name, or the process's own; returns the exit status."""
    args = _parser().parse_args(arguments)
    try:
        if args.coco is None:
            if args.minutes is not None and not 0 < args.minutes <= _MOST_MINUTES:
                raise ConfigError(
                    f"--minutes needs a number above 0, {_MOST_MINUTES} at most, a year"
                )
            print(config(args.data, args.val, args.images, args.annotations, args.minutes), end="")
        else:
            for option in ("val", "images", "annotations", "minutes"):
                if getattr(args, option) is not None:
                    raise ConfigError(f"--coco converts --data alone: leave out --{option}")
            for file in _convert(args.data, args.coco):
                print(f"written: {file}", file=sys.stderr)
    except (ConfigError, DataError, LoaderProcessError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def config(
    data: Path,
    val: Path | None,
    images: Path | None,
    folder: Path | None,
    minutes: float | None = None,
) -> str:
    """The text of a config; what it was made from is told on the standard error.

    With `minutes` steps are timed, for about a minute, and the model fits them.
    """
    from detlite.apps.autoconfig import (
        Choice,
        Facts,
        as_config,
        choose,
        config_text,
        fit,
        measure,
        places,
    )
    from detlite.apps.autoconfig.step_timing import mean_step_seconds
    from detlite.apps.dataset_formats import find_sets
    from detlite.apps.doctor import resources

    sets, how = find_sets(data, val, images, folder)
    print(how, file=sys.stderr)
    found = {split: measure(one.annotations, one.images) for split, one in sets.items()}
    facts = Facts(found["train"], found.get("val"), resources())
    where = places(sets, how)

    def seconds_of_step(facts: Facts, choices: Sequence[Choice]) -> float:
        return mean_step_seconds(as_config(facts, [*where, *choices]))

    if minutes:
        print("timing training steps on this machine", file=sys.stderr)
        with naming_dead_loaders():
            facts = fit(facts, minutes, seconds_of_step)
    return config_text([*where, *choose(facts)], facts.summary, facts.base)


def _convert(data: Path, file: Path) -> list[Path]:
    from detlite.apps.dataset_formats import convert

    return convert(data, file)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "detlite init", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", required=True, type=Path, help="annotation file, or folder, to train on"
    )
    parser.add_argument("--val", type=Path, help="the same, to measure on (else: split --data)")
    parser.add_argument(
        "--images", type=Path, help="folder of the pictures of annotation files (else: found)"
    )
    parser.add_argument(
        "--annotations",
        type=Path,
        help="folder for the json files that are made (detlite, in the folder of --data)",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        help="of training: time some steps, and choose a model and a size of pictures for them",
    )
    parser.add_argument("--coco", type=Path, help="only write --data as COCO json, to this file")
    return parser
