"""Write a config for a dataset, with the reason for each key, or convert it to COCO json.

    detlite init --data photos > mine.yaml
    detlite init --data train.json --val val.json > mine.yaml
    detlite init --data photos --minutes 15 > mine.yaml
    detlite init --data photos --weights mask_rcnn.pth > mine.yaml
    detlite init --data photos DATASETS.CROWDS_AS_OBJECTS True > mine.yaml
    detlite init --data photos --coco photos.json
    detlite train --config mine.yaml

The command reads COCO json, labels of YOLO, PASCAL VOC and LabelMe, and mask images, and converts
them to COCO json. For about seventy other formats, it says how their tools export COCO json.
Without --val, it sets one image in five aside for evaluation, chosen by a hash of the file names;
nearly identical images and frames of a video stay together. With --minutes, it measures training
steps on this machine, and chooses the model and the image size accordingly. With --weights, the
config trains the model of that checkpoint. docs/formats.md lists the formats and the rules.
"""

import sys
from argparse import Namespace
from pathlib import Path

from detlite.apps.cli.options import OVERRIDES, flag, option, weights

_MAX_MINUTES = 525_600  # a year
_NOT_WITH_COCO = ("val", "images", "annotations", "minutes", "weights", "single_class")
_KEYS_OF_COCO = ("MODEL.CONVENTION", "MODEL.CONVENTION_OVERRIDE")  # whether images are upright


OPTIONS = (
    option("--data", "PATH", "annotation file or folder to train on", type=Path, required=True),
    option("--val", "PATH", "annotation file or folder to evaluate on (default: a part of --data)",
           type=Path),
    option("--images", "FOLDER", "folder of the images (default: searched for next to the "
           "annotation files)", type=Path),
    option("--masks", None, "meaning of mask images: each value is an object; each connected piece "
           "of a value is an object; the same, and each value is a category (default: stop if it "
           "is ambiguous)", choices=["instances", "connected", "semantic"]),
    flag("--skip-bad", "skip invalid labels, ignore their regions, and report them (default: "
         "stop)"),
    option("--annotations", "FOLDER", "folder for the json files (default: the folder detlite "
           "inside --data)", type=Path),
    flag("--single-class", "train all categories as one"),
    option("--minutes", None, "training time in minutes, to which the model and the image size are "
           "adapted", type=float),
    weights("checkpoint to start from, with its model (default: a model that fits the data)"),
    option("--coco", "FILE", "only convert --data to COCO json and write it to this file",
           type=Path),
    OVERRIDES,
)  # fmt: skip


def run(args: Namespace) -> int:
    from detlite.config import ConfigError, load_config
    from detlite.data.findings import summary
    from detlite.data.images.pixels import build_image_options

    if args.minutes is not None and not 0 < args.minutes <= _MAX_MINUTES:
        raise ConfigError(
            f"--minutes {args.minutes:g}: must be above 0 and at most {_MAX_MINUTES}, a year"
        )
    if args.coco is None:
        print(config(args), end="")
        return 0
    given = [name for name in _NOT_WITH_COCO if getattr(args, name) not in (None, False)]
    unused = [f"--{name.replace('_', '-')}" for name in given]
    if unused := unused + [key for key in args.overrides[::2] if key not in _KEYS_OF_COCO]:
        raise ConfigError(f"{unused[0]} has no effect on --coco, which only converts --data")
    from detlite.apps.dataset_formats import convert

    upright = build_image_options(load_config(None, args.overrides)).exif_orientation
    files, findings = convert(args.data, args.coco, args.masks, args.skip_bad, upright)
    for file in files:
        _log(f"wrote {file}")
    _log(summary({str(args.data): findings}))
    return 0


def _log(text: str) -> None:
    if text:
        print(text, file=sys.stderr)


def config(args: Namespace) -> str:
    """Return the text of a config; report on standard error how the data were read."""
    from detlite.apps.autoconfig.configs import derive_config
    from detlite.apps.autoconfig.dataset_facts import Choice
    from detlite.apps.autoconfig.time_budget import mean_step_seconds
    from detlite.apps.autoconfig.yaml_text import config_text, dataset_choices
    from detlite.apps.dataset_formats import find_sets
    from detlite.config import load_config
    from detlite.config.loading import flatten
    from detlite.data import explain_dead_loader
    from detlite.data.datasets.build import build_test_datasets, build_train_dataset, findings_of
    from detlite.data.images.pixels import build_image_options
    from detlite.threads import limit_threads

    upright = build_image_options(load_config(None, args.overrides)).exif_orientation
    sets, text = find_sets(
        args.data, args.val, args.images, args.annotations, args.masks, args.skip_bad, upright,
        args.single_class,
    )  # fmt: skip
    _log(text)
    fixed, weights = dataset_choices(sets, text), args.weights
    if weights:
        weights = str(Path(weights).absolute()) if Path(weights).is_file() else weights
        reason = "initial weights; the other keys of MODEL and INPUT are theirs"
        fixed.append(Choice("MODEL.WEIGHT", weights, reason))
        reason = "keep what the heads know of categories with the same name"
        fixed.append(Choice("MODEL.REINIT_HEADS", True, reason))
    if args.minutes:
        _log("timing training steps on this machine, at most two minutes")
        fixed.append(Choice("SOLVER.MAX_MINUTES", args.minutes))
    if weights or args.minutes:
        limit_threads()
    opts = [word for choice in fixed for word in (choice.key, choice.value)] + args.overrides
    with explain_dead_loader():
        cfg, choices, facts = derive_config(opts, weights, mean_step_seconds, _log)
    train = facts.train
    for key, is_used, is_complete in (
        ("MASK_ON", facts.masks, train.with_masks == len(train.boxes)),
        ("KEYPOINT_ON", facts.keypoints, 0 < train.keypoint_objects == train.with_keypoints),
    ):
        if is_complete and not is_used and f"MODEL.{key}" not in args.overrides[::2]:
            _log(
                f"MODEL.{key} is False, although all training objects would fit: objects of "
                "the evaluation set do not. Name another set with --val"
            )
    # What training will skip, reinterpret or switch off because of the data.
    parts = build_train_dataset(cfg).parts
    _log(findings_of([*parts, *build_test_datasets(cfg)], parts))
    stated = {choice.key: choice.reason for choice in fixed}
    stated |= dict.fromkeys(args.overrides[::2], "given on the command line")
    chosen = {choice.key: choice.reason for choice in choices}
    reasons = {key: reason for key, reason in stated.items() if key not in chosen} | chosen
    values = dict(flatten(cfg))
    keys = [key for key in reasons if key in values]
    if weights:  # without a base
        defaults = dict(flatten(load_config(None)))
        keys = [key for key in values if values[key] != defaults[key]]
    written = [Choice(key, values[key], reasons.get(key, "")) for key in keys]
    return config_text(written, facts.summary, "" if weights else facts.base)
