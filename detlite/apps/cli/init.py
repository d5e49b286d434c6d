"""Write a config for a data set, with a reason for every key, or convert it to COCO json.

    detlite init --data photos > mine.yaml
    detlite init --data train.json --val val.json > mine.yaml
    detlite init --data photos --minutes 15 > mine.yaml
    detlite init --data photos --weights mask_rcnn.pth > mine.yaml
    detlite init --data photos DATASETS.CROWDS_AS_OBJECTS True > mine.yaml
    detlite init --data photos --coco photos.json
    detlite train --config mine.yaml

Reads COCO json, and the labels of YOLO, PASCAL VOC, LabelMe, CVAT, VIA, Label Studio, CreateML,
Supervisely and Datumaro or mask images, which are written as COCO json. Without --val, one image in
five, chosen by a hash of the file names, is set apart for evaluation. With --minutes, some training
steps are timed on this machine and the model and image size are chosen to fit. With --weights, the
model of that checkpoint is trained.
docs/init.md lists the layouts and the rules.
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from detlite.apps import cli

_MAX_MINUTES = 525_600  # a year
_NOT_WITH_COCO = ("val", "images", "annotations", "minutes", "weights")


def add_arguments(parser: ArgumentParser) -> None:
    text = "annotation file or folder to train on"
    cli.add_option(parser, "--data", text, "PATH", type=Path, required=True)
    text = "annotation file or folder to evaluate on (default: a part of --data)"
    cli.add_option(parser, "--val", text, "PATH", type=Path)
    text = "images of the annotation files (default: searched for next to them)"
    cli.add_option(parser, "--images", text, "FOLDER", type=Path)
    text = "meaning of mask images: each value is an object; each connected piece of a value is "
    text += "one; the same, and each value is a category (default: ask if it is not clear)"
    cli.add_option(parser, "--masks", text, choices=["instances", "connected", "semantic"])
    text = "skip bad labels, ignore their places, and report them (default: refuse the data)"
    cli.add_flag(parser, "--skip-bad", text)
    text = "keep nearly identical images together when some are set apart for evaluation"
    cli.add_flag(parser, "--group-duplicates", text)
    text = "where to write json files (default: the folder detlite inside --data)"
    cli.add_option(parser, "--annotations", text, "FOLDER", type=Path)
    text = "training time to fit the model and image size to"
    cli.add_option(parser, "--minutes", text, type=float)
    text = "checkpoint to start from, whose model is used (default: a model that fits the data)"
    cli.add_weights(parser, text, required=False)
    text = "only write --data as COCO json to this file"
    cli.add_option(parser, "--coco", text, "FILE", type=Path)
    cli.add_overrides(parser, device=False)


def run(args: Namespace) -> int:
    from detlite.config import ConfigError
    from detlite.data.findings import summary

    if args.minutes is not None and not 0 < args.minutes <= _MAX_MINUTES:
        raise ConfigError(
            f"--minutes {args.minutes:g}: must be above 0 and at most {_MAX_MINUTES}, a year"
        )
    if args.coco is None:
        text = config(
            args.data, args.val, args.images, args.annotations, args.minutes, args.weights,
            args.masks, args.skip_bad, args.overrides, args.group_duplicates,
        )  # fmt: skip
        print(text, end="")
        return 0
    for option in _NOT_WITH_COCO:
        if getattr(args, option) is not None:
            raise ConfigError(f"--{option} has no effect on --coco, which only converts --data")
    from detlite.apps.dataset_formats import convert

    files, findings = convert(args.data, args.coco, args.masks, args.skip_bad)
    for file in files:
        _log(f"wrote {file}")
    _log(summary({str(args.data): findings}))
    return 0


def _log(text: str) -> None:
    if text:
        print(text, file=sys.stderr)


def config(
    data: Path,
    val: Path | None,
    images: Path | None,
    folder: Path | None,
    minutes: float | None = None,
    weights: str | None = None,
    masks: str | None = None,
    skip_bad: bool = False,
    overrides: Sequence[str] = (),
    group_duplicates: bool = False,
) -> str:
    """Return the text of a config; report on standard error how the data were read.

    With `minutes`, training steps are timed for about a minute and the model is chosen to fit. With
    `weights`, the model is that of a checkpoint. `overrides` are KEY VALUE pairs of the config.
    """
    from detlite.apps import autoconfig
    from detlite.apps.autoconfig.configs import overridden
    from detlite.apps.autoconfig.step_timing import mean_step_seconds
    from detlite.apps.dataset_formats import find_sets
    from detlite.apps.doctor import resources
    from detlite.config import load_config
    from detlite.data import explain_dead_loader
    from detlite.data.datasets.catalog import build_test_datasets, build_train_dataset, findings_of
    from detlite.data.images.reading import build_image_options
    from detlite.threads import limit_threads

    start = load_config(None, overrides)
    values = overridden(start, overrides)
    options, crowds = build_image_options(start), start.DATASETS.CROWDS_AS_OBJECTS
    upright = options.exif_orientation
    sets, text = find_sets(data, val, images, folder, masks, skip_bad, group_duplicates, upright)
    _log(text)
    statistics = {
        split: autoconfig.compute_statistics(
            source.annotations, source.images, options, crowds_as_objects=crowds
        )
        for split, source in sets.items()
    }
    facts = autoconfig.DatasetFacts(statistics["train"], statistics.get("val"), resources())
    choices = [one for one in autoconfig.dataset_choices(sets, text) if one.key not in values]
    choices += [
        autoconfig.Choice(key, value, "as the command says") for key, value in values.items()
    ]

    def seconds_of_step(facts: autoconfig.DatasetFacts, more: Sequence[autoconfig.Choice]) -> float:
        return mean_step_seconds(autoconfig.as_config(facts, [*choices, *more]))

    if weights or minutes:
        limit_threads()
    with explain_dead_loader():
        if weights:
            choices = autoconfig.choices_by_weights(
                facts, choices, weights, mean_step_seconds, minutes
            )
        else:
            if minutes:
                _log("timing training steps on this machine, at most two minutes")
                facts = autoconfig.fit_to_minutes(
                    facts, minutes, seconds_of_step, values=values, progress=_log
                )
            choices = [*choices, *autoconfig.choose(facts, values)]
    cfg = autoconfig.as_config(facts, choices)
    train = facts.train
    for key, is_complete in (
        ("MASK_ON", train.with_masks == len(train.boxes)),
        ("KEYPOINT_ON", 0 < train.keypoint_objects == train.with_keypoints),
    ):
        if is_complete and not cfg.MODEL[key] and f"MODEL.{key}" not in values:
            _log(
                f"MODEL.{key} is False, although all training objects would fit: those of the "
                "evaluation set do not. Name another one with --val"
            )
    # What training will leave out, reinterpret or switch off because of the data.
    _log(findings_of([*build_train_dataset(cfg).parts, *build_test_datasets(cfg)]))
    return autoconfig.config_text(choices, facts.summary, "" if weights else facts.base)
