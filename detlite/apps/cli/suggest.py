"""Choose which images to label next, and write them with detections as labels to correct.

    detlite suggest --weights output/photos/model_final.pth --input more_photos --output to_label
    detlite suggest --weights model_final.pth --input 'photos/**/*.jpg' --count 20 \\
        --output to_label --format label-studio

Images with many uncertain detections come first. Images of the training and test sets of the
checkpoint, and images that are nearly identical to these or to each other, are left out.

Files in the output folder, which must be empty or new:
    images/0001_<name>   copies of the images, by rank
    suggestions.csv      the original files, and their numbers of uncertain and certain detections
    annotations.json     with --format coco: the certain detections as polygons, also for CVAT
    images/*.json        with --format labelme, and labels.txt with the categories
    labels/*.txt         with --format yolo, and data.yaml with the categories
    tasks.json           with --format label-studio: tasks with predictions; import them into a
                         project with the labeling configuration labels.xml

Exit status: 0; 2 for an error that you can fix; 130 after Ctrl-C.
"""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from detlite.apps import cli


def add_arguments(parser: ArgumentParser) -> None:
    cli.add_weights(parser, "checkpoint of detlite")
    parser.add_argument(
        "--input", dest="inputs", required=True, nargs="+", metavar="IMAGES",
        help="local images: files, folders, globs or lists (.txt)",
    )  # fmt: skip
    cli.add_option(parser, "--count", "number of images", "N", 50, limits=(1, None))
    cli.add_option(parser, "--output", "output folder", "FOLDER", type=Path, required=True)
    text = "format of the labels"
    cli.add_option(
        parser,
        "--format",
        text,
        default="coco",
        choices=["coco", "label-studio", "labelme", "yolo"],
    )
    cli.add_overrides(parser)


def run(args: Namespace) -> int:
    from detlite.apps.fewer_labels.suggest import suggest

    opts = cli.config_overrides(args)
    print(suggest(args.weights, args.inputs, args.count, args.format, args.output, opts))
    return 0
