"""Commands that write about runs and training images: report, compare, browse."""

from argparse import Namespace
from functools import partial
from pathlib import Path

from .options import FONT, OVERRIDES, command, config, flag, option


@command(
    option("runs", "RUN", "output folders of runs", nargs="*"),
    option("--truth", "FILE", "COCO annotation file of the --results", type=Path),
    option("--results", "FILE", "COCO result files, instead of runs", type=Path, nargs="+"),
    option("--images", "FOLDER", "image folder of --truth (default: searched for next to it)",
           type=Path),
    option("--max-detections", None, "number of highest-scoring detections of an image and "
           "category that count for --results", 100, minimum=1),
    option("--sigmas", "NUMBER", "standard deviation of each keypoint for OKS, with --results "
           "(default: COCO's)", type=float, nargs="+"),
    option("--iou-thresholds", "NUMBER", "IoUs over which AP and AR are averaged, with --results "
           "(default: 0.5 to 0.95)", type=float, nargs="+"),
    flag("--skip-bad", "ignore unusable annotations of --truth instead of stopping"),
    option("--output", "FILE", "HTML file to write (default: report.html in the folder of the run; "
           "for several runs, comparison.html in the folder of the first one)", type=Path),
    option("--resamples", None, "number of bootstrap samples for confidence intervals", 1000,
           minimum=100),
    option("--seed", None, "seed of the bootstrap", 0),
    option("--examples", None, "number of false positives and misses to show of each dataset", 48,
           minimum=0),
    FONT,
    OVERRIDES,
)  # fmt: skip
def report(args: Namespace) -> int:
    """Write an HTML page about one or several runs: metrics, errors, and a comparison.

        detlite report output/cells
        detlite report output/cells output/cells_larger --output both.html
        detlite report --truth instances_val.json --results yolo.json mask_rcnn.json

    A RUN is the output folder of `detlite train` or `detlite test`, with config.yaml and
    results_<dataset>.json. With --truth and --results, the page is about detections of any
    framework in COCO's format. If there are several runs or result files, the page compares the
    others with the first one. The page is a single HTML file that works offline. docs/report.md
    explains it. KEY VALUE pairs override keys of the config, such as those that a message names.
    """
    from detlite.apps.report.report_page import report_page
    from detlite.apps.report.runs import read_detections, read_run, run_names
    from detlite.config import ConfigError
    from detlite.engine.run_files import run_lock
    from detlite.files.atomic_write import write_file

    folders, results = list(map(Path, args.runs)), args.results or []
    if bool(args.truth) != bool(results) or bool(folders) == bool(results):
        raise ConfigError("name the output folders of runs, or one --truth and its --results")
    paths, read = folders or results, partial(read_run, opts=args.overrides)
    if results:
        opts = [
            "MODEL.ROI_HEADS.DETECTIONS_PER_IMG", args.max_detections,
            "TEST.KEYPOINT_OKS_SIGMAS", tuple(args.sigmas or ()),
            "TEST.IOU_THRESHOLDS", tuple(args.iou_thresholds or ()),
            "DATASETS.ON_BAD_ANNOTATION", "skip" if args.skip_bad else "error",
            *args.overrides,
        ]  # fmt: skip
        read = partial(read_detections, truth=args.truth, images=args.images, opts=opts)
    runs = list(map(read, paths, run_names(paths)))
    folder = paths[0] if paths[0].is_dir() else paths[0].parent
    output = args.output or folder / ("report.html" if len(paths) == 1 else "comparison.html")
    with run_lock(output.parent, name=output.name):
        page = report_page(runs, args.resamples, args.seed, args.examples, print)
        write_file(output, page.encode())
    print(f"{output}: {len(page.encode()) / 2**20:.1f} MiB")
    return 0


@command(
    option("runs", "RUN", "output folders of `detlite train` or `test`", nargs="+", type=Path),
    option("--format", None, "format of the table", "text", choices=["text", "markdown", "csv"]),
)  # fmt: skip
def compare(args: Namespace) -> int:
    """Print a table of runs: the config keys in which they differ, and their metrics.

        detlite compare output/cells output/cells_larger
        detlite compare output/cells_seed* --format markdown

    Runs that differ by SEED only are one row, with the mean and the standard deviation of each
    metric. `detlite report` compares the detections of runs."""
    from detlite.apps.report.run_table import format_rows, run_table
    from detlite.apps.report.runs import read_run, run_names

    runs = list(map(read_run, args.runs, run_names(args.runs)))
    print(format_rows(run_table(runs), args.format))
    return 0


@command(
    config(None),
    option("--count", None, "number of images to show", 24, minimum=1),
    option("--output", "FILE", "HTML file to write", "browse.html", type=Path),
    FONT,
    OVERRIDES,
)  # fmt: skip
def browse(args: Namespace) -> int:
    """Write an HTML page of augmented training images with their objects.

        detlite browse --config cells.yaml --count 24 --output browse.html
        detlite browse --config cells.yaml INPUT.MIN_SIZE_TRAIN "(640,)"

    The page shows the images of the first training batches, exactly as training with the same SEED
    uses them. It also lists the objects that no anchor fits. docs/report.md explains the page.
    """
    from detlite.apps.report.browse_page import browse_page
    from detlite.config import load_config
    from detlite.files.atomic_write import write_file

    page = browse_page(load_config(args.config, args.overrides), args.count)
    write_file(args.output, page.encode())
    print(f"{args.output}: {len(page.encode()) / 2**20:.1f} MiB")
    return 0
