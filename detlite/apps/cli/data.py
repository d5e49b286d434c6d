"""Commands that read a dataset: init, check."""

import sys
from argparse import Namespace
from pathlib import Path

from .options import DATA_OPTIONS, FONT, OVERRIDES, command, option, weights

_MAX_MINUTES = 525_600  # a year
_NOT_WITH_COCO = ("val", "images", "annotations", "minutes", "weights", "single_class", "group_by")
_KEYS_OF_COCO = ("MODEL.CONVENTION", "MODEL.CONVENTION_OVERRIDE")  # whether images are upright


def _log(text: str) -> None:
    if text:
        print(text, file=sys.stderr)


@command(
    option("--data", "PATH", "annotation file or folder to train on", type=Path, required=True),
    *DATA_OPTIONS,
    option("--annotations", "FOLDER", "folder for json files (default: detlite in the data folder)",
           type=Path),
    option("--minutes", None, "minutes of training, which decide batch and image size", type=float),
    weights("checkpoint to start from, with its model (default: a model that fits the data)"),
    option("--coco", "FILE", "only convert --data, to this file in COCO format", type=Path),
    OVERRIDES,
)  # fmt: skip
def init(args: Namespace) -> int:
    """Write a config for a dataset, with the reason for each key, or convert it to COCO json.

        detlite init --data photos > mine.yaml
        detlite init --data train.json --val val.json > mine.yaml
        detlite init --data photos --minutes 15 > mine.yaml
        detlite init --data photos --weights mask_rcnn.pth > mine.yaml
        detlite init --data photos DATASETS.CROWDS_AS_OBJECTS True > mine.yaml
        detlite init --data photos --coco photos.json
        detlite train --config mine.yaml

    The command reads COCO json, labels of YOLO, PASCAL VOC and LabelMe, and mask images, and
    converts them to COCO json. For other formats, it says what to export instead. Without --val, it
    sets one image in five aside for evaluation, chosen by a hash of the file names. Images that
    show the same stay together: nearly identical ones, frames, slices, tiles, augmented copies, and
    those with the same --group-by. With --minutes, it measures training steps on this machine, and
    chooses the batch accordingly. With --weights, the config trains the model of
    that checkpoint. docs/formats.md lists the formats and the rules."""
    from detlite.apps.autoconfig.init_config import init_config
    from detlite.apps.dataset_formats import Conversion, convert
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
    conversion = Conversion(args.masks, args.skip_bad, upright)
    written = convert(args.data, args.coco, conversion)
    for file in written:
        _log(f"wrote {file}")
    _log(summary({str(file): findings for file, findings in written.items()}))
    return 0


@command(
    option("--data", "PATH", "annotation files (.json), the path or name of a config, or a folder",
           required=True, nargs="+", type=Path),
    option("--images", "FOLDER", "image folder (default: searched for next to annotation files)",
           type=Path),
    option("--page", "FILE", "HTML report with images to write", type=Path),
    option("--max-per-kind", None, "number of defects of each kind to print", 20),
    FONT,
    OVERRIDES,
)  # fmt: skip
def check(args: Namespace) -> int:
    """Find all defects of a dataset before training.

        detlite check --data train.json val.json --images photos --page report.html
        detlite check --data configs/mine.yaml
        detlite check --data photos

    With a config, the command checks all sets of DATASETS.TRAIN and DATASETS.TEST for the model of
    the config. A folder with labels in any format is converted and split as by `detlite init`. The
    command lists errors that stop training first, then warnings: boxes that do not match their
    masks, duplicate annotations, EXIF orientations, outliers, and images within and across sets
    that show the same, see `detlite init`. KEY VALUE pairs override keys of the config, or set
    those of the training without a config.

    Exit status: 0; 1 if there are errors that stop training; 2 if nothing could be checked.
    """
    from detlite.apps.dataset_check import inspection_report
    from detlite.apps.dataset_check.data_page import data_page
    from detlite.apps.dataset_check.inspection import inspect
    from detlite.data.images.checks import unlisted_images
    from detlite.files.atomic_write import write_file

    sets = [one for path in args.data for one in inspect(path, args.images, args.overrides)]
    listed = [(inspection.table, inspection.folder) for inspection in sets if inspection.table]
    sets[0].findings += unlisted_images(listed)
    similar = inspection_report.similar_images(sets)
    for number, inspection in enumerate(sets):
        inspection_report.print_report(inspection, args.max_per_kind)
        inspection_report.print_similar(sets, similar, args.max_per_kind, number)
    inspection_report.print_similar(sets, similar, args.max_per_kind)
    if args.page:
        write_file(args.page, data_page(sets, similar).encode())
    return 1 if any(inspection.refused for inspection in sets) else 0
