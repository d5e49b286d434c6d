"""Find all defects of a dataset before training.

    detlite check --data train.json val.json --images photos --page report.html
    detlite check --data configs/mine.yaml
    detlite check --data photos

With a config, the command checks all sets of DATASETS.TRAIN and DATASETS.TEST for the model of the
config. A folder with labels in any format is converted and split as by `detlite init`. The command
lists errors that stop training first, then warnings: boxes that do not match their masks, duplicate
annotations, EXIF orientations, outliers, and images within and across sets that show the same, see
`detlite init`.
KEY VALUE pairs override keys of the config, or set those of the training without a config.

Exit status: 0; 1 if there are errors that stop training; 2 if nothing could be checked.
"""

from argparse import Namespace
from pathlib import Path

from detlite.apps.cli.options import FONT, OVERRIDES, option

OPTIONS = (
    option("--data", "PATH", "annotation files (.json), the path or name of a config, or a folder",
           required=True, nargs="+", type=Path),
    option("--images", "FOLDER", "folder of the images (default: searched for next to the "
           "annotation files)", type=Path),
    option("--page", "FILE", "HTML report with images to write", type=Path),
    option("--max-per-kind", None, "number of defects of each kind to print", 20),
    FONT,
    OVERRIDES,
)  # fmt: skip


def run(args: Namespace) -> int:
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
