"""Write a config for a dataset, with the reason for each key, or convert it to COCO json.

    detlite init --data photos > mine.yaml
    detlite init --data train.json --val val.json > mine.yaml
    detlite init --data photos --minutes 15 > mine.yaml
    detlite init --data photos --weights mask_rcnn.pth > mine.yaml
    detlite init --data photos DATASETS.CROWDS_AS_OBJECTS True > mine.yaml
    detlite init --data photos --coco photos.json
    detlite train --config mine.yaml

The command reads COCO json, labels of YOLO, PASCAL VOC and LabelMe, and mask images, and converts
them to COCO json. For other formats, it says what to export instead.
Without --val, it sets one image in five aside for evaluation, chosen by a hash of the file names.
Images that show the same stay together: nearly identical ones, frames, slices, tiles, augmented
copies, and those with the same --group-by. With --minutes, it measures training steps on this
machine, and chooses the batch and the image size accordingly. With --weights, the config trains the
model of that checkpoint. docs/formats.md lists the formats and the rules.
"""

import sys
from argparse import Namespace
from pathlib import Path

from detlite.apps.cli.options import DATA_OPTIONS, OVERRIDES, option, weights

_MAX_MINUTES = 525_600  # a year
_NOT_WITH_COCO = ("val", "images", "annotations", "minutes", "weights", "single_class",
                  "group_by")  # fmt: skip
_KEYS_OF_COCO = ("MODEL.CONVENTION", "MODEL.CONVENTION_OVERRIDE")  # whether images are upright


OPTIONS = (
    option("--data", "PATH", "annotation file or folder to train on", type=Path, required=True),
    *DATA_OPTIONS,
    option("--annotations", "FOLDER", "folder for the json files (default: the folder detlite "
           "inside --data)", type=Path),
    option("--minutes", None, "training time in minutes, to which the batch and the image size are "
           "adapted", type=float),
    weights("checkpoint to start from, with its model (default: a model that fits the data)"),
    option("--coco", "FILE", "only convert --data to COCO json and write it to this file",
           type=Path),
    OVERRIDES,
)  # fmt: skip


def run(args: Namespace) -> int:
    from detlite.apps.autoconfig.init_config import init_config
    from detlite.apps.dataset_formats import convert
    from detlite.config import ConfigError, load_config
    from detlite.data.findings import summary
    from detlite.data.images.pixels import build_image_options

    if args.minutes is not None and not 0 < args.minutes <= _MAX_MINUTES:
        raise ConfigError(
            f"--minutes {args.minutes:g}: must be above 0 and at most {_MAX_MINUTES}, a year"
        )
    if args.coco is None:
        print(init_config(args, _log), end="")
        return 0
    given = [name for name in _NOT_WITH_COCO if getattr(args, name) not in (None, False)]
    unused = [f"--{name.replace('_', '-')}" for name in given]
    if unused := unused + [key for key in args.overrides[::2] if key not in _KEYS_OF_COCO]:
        raise ConfigError(f"{unused[0]} has no effect on --coco, which only converts --data")
    upright = build_image_options(load_config(None, args.overrides)).exif_orientation
    files, findings = convert(args.data, args.coco, args.masks, args.skip_bad, upright)
    for file in files:
        _log(f"wrote {file}")
    _log(summary({str(args.data): findings}))
    return 0


def _log(text: str) -> None:
    if text:
        print(text, file=sys.stderr)
