"""Estimate the gain of more labels: train on all of them, on half and on a quarter, and compare.

OUTPUT/all, OUTPUT/half, OUTPUT/quarter   runs of equally many steps, with the same test images
OUTPUT/half/labels/DATASET.json           the labels of a run, a part of those of DATASET
OUTPUT/report.html                        the comparison, with the curve and the answer
"""

import json
import random
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from detlite.api import train
from detlite.apps.drawing.html_page import percent
from detlite.apps.optional_packages import import_optional
from detlite.apps.report import charts
from detlite.apps.report.analysis.bootstrap import compare, interval
from detlite.apps.report.metric_sections import TITLES
from detlite.apps.report.report_page import report_page
from detlite.apps.report.runs import RunAnalysis, read_run
from detlite.checkpoint.files import read_checkpoint
from detlite.config import ConfigError, load_config
from detlite.data import build_dataset
from detlite.data.data_arguments import training_data
from detlite.data.datasets.catalog import locate_dataset
from detlite.data.images.sources import ImageArchive
from detlite.data.locations import local_copy, location_id
from detlite.distributed import torchrun_rank
from detlite.engine.run_config import as_list
from detlite.engine.run_files import CONFIG_FILE, FINAL_CHECKPOINT, check_output_dir, files_of_run
from detlite.files.atomic_write import write_file
from detlite.files.errors import DataError
from detlite.files.json_files import read_json

_MIN_LABELED = 8  # images, so that a quarter has two
_SMALL_GAIN = 0.02  # of AP


def learning_curve(
    config: str | None, data: str | None, folder: Path, opts: Sequence[Any], resume: bool
) -> None:
    """Train and compare the three runs, and print the answer. See `detlite learning-curve`.

    Args:
        config, data, resume: as for `detlite.train`. The run on all labels chooses the config.
        folder: folder of all files.
        opts: config overrides.

    Raises:
        ConfigError: no test set, images without labels, or other errors of `detlite.train`.
        DataError: the labels cannot be divided, or other errors of `detlite.train`.
    """
    import_optional("jinja2", "detlite[report]")  # before hours of training
    if config is None and data is None:
        raise ConfigError("learning-curve needs --data or --config")
    keys, summary = ({}, "") if data is None else training_data(data)
    cfg = load_config(config, [*as_list(keys), *opts])
    if not cfg.DATASETS.TEST:
        raise ConfigError("DATASETS.TEST is empty: the runs need images to be compared on")
    if cfg.DATASETS.UNLABELED:
        raise ConfigError("DATASETS.UNLABELED must be empty: the runs differ only in their labels")
    used, parts = folder / "all" / CONFIG_FILE, {"half": 2, "quarter": 4}
    for name in ("all", *parts):
        check_output_dir(folder / name, resume)
    if summary:
        print(summary)
    keep = bool(files_of_run(used.parent))  # a resumed curve keeps its labels
    datasets = {name: _write_labels(cfg, folder / name, part, keep) for name, part in parts.items()}
    pairs = [(entry["annotations"], entry["images"]) for entry in keys.get("DATASETS.CATALOG", ())]
    own, test = [*pairs, None, None][:2]
    train(config, data=own, test_data=test, output_dir=used.parent, overrides=opts, resume=resume)
    # Equal minutes may allow different numbers of steps, if other programs use the machine.
    steps = read_checkpoint(used.parent / FINAL_CHECKPOINT).training["iteration"]
    for name in parts:
        keys = {"SOLVER.MAX_MINUTES": None, "SOLVER.MAX_EPOCHS": None, "SOLVER.MAX_ITER": steps}
        train(used, output_dir=folder / name, overrides=keys | datasets[name], resume=resume)
    if torchrun_rank()[0] == 0:
        runs = [read_run(folder / name, name) for name in ("all", *parts)]
        page = report_page(runs, progress=print, link_from=folder, introduce=_introduce)
        write_file(folder / "report.html", page.encode())


def _write_labels(cfg: CfgNode, folder: Path, part: int, keep: bool) -> dict[str, Any]:
    """Write one in `part` of the labeled images of each training set, and of the others.

    The images of a quarter are among those of the half. With `keep`, existing files stay.

    Returns:
        The keys of a config that trains on them.
    """
    catalog, names = list(cfg.DATASETS.CATALOG), []
    for name in cfg.DATASETS.TRAIN:
        kind, annotations, images = locate_dataset(cfg, name)
        if isinstance(images, ImageArchive):
            raise DataError(f"{name}: is stored in shards: name the COCO file they were made from")
        if (count := len(build_dataset(cfg, name, train=True))) < _MIN_LABELED:
            raise DataError(f"{annotations}: {count} images have labels, but a curve needs at "
                            f"least {_MIN_LABELED}: label more images first")  # fmt: skip
        with local_copy(annotations) as source:
            content = read_json(source)
        labeled = {row["image_id"] for row in content["annotations"]}
        rows = content["images"]
        random.Random(cfg.SEED).shuffle(rows)
        rows = sorted(rows, key=lambda row: row["id"] not in labeled)[::part]
        kept = {row["id"] for row in rows}
        objects = [row for row in content["annotations"] if row["image_id"] in kept]
        file = folder / "labels" / f"{name}.json"
        if not (keep and file.exists()):
            text = json.dumps(content | {"images": rows, "annotations": objects})
            write_file(file, text.encode())
        names.append(f"{name}_{folder.name}")
        catalog.append({
            "name": names[-1], "annotations": str(file.absolute()), "images": location_id(images),
            **({"type": kind} if kind == "lvis" else {}),
        })  # fmt: skip
    return {"DATASETS.CATALOG": catalog, "DATASETS.TRAIN": tuple(names)}


def _introduce(analyzed: Sequence[RunAnalysis]) -> str:
    """Print the answer of a test set, and return it as HTML with the curve."""
    answer = _answer(analyzed)
    curves: dict[str, dict[int, charts.Bar]] = {TITLES[kind]: {} for kind in analyzed[0].analyses}
    for run in analyzed:
        for kind, result in run.analyses.items():
            ap, samples = result.metrics["AP"], result.bootstrap.metrics()["AP"]
            curves[TITLES[kind]][run.run.train_images] = ap, interval(ap, samples)
    print(answer)
    chart = charts.learning_curve("AP by the number of labeled images", curves)
    return (f'<p class="advice"><b>Would more labels help?</b> {escape(answer)}</p>'
            f'<div class="charts"><div>{chart}</div></div>')  # fmt: skip


def _answer(analyzed: Sequence[RunAnalysis]) -> str:
    """Say if more labels will help, from the gain of all labels over half of them."""
    whole, half = analyzed[:2]
    kind = "segm" if "segm" in whole.analyses else "bbox"
    after, before = whole.analyses[kind], half.analyses[kind]
    samples = (result.bootstrap.metrics()["AP"] for result in (before, after))
    change = compare(before.metrics["AP"], after.metrics["AP"], *samples)
    if change is None:
        return "The test set has no objects, so the runs cannot be compared."
    low, high = change.interval
    start = (
        f"With {whole.run.train_images} labeled images instead of {half.run.train_images}, the AP "
        f"for {TITLES[kind].lower()} changes by {percent(change.value, sign='+')} points"
    )
    count = len(whole.dataset)
    too_few = (f"{count} test {'image is' if count == 1 else 'images are'} too few to tell. Label "
               "more of them, or repeat the runs with another SEED.")  # fmt: skip
    if low == high:  # all samples are equal: both APs are 0, or one image has all objects
        too_little = "the runs detect too little to tell. Train longer."
        return f"{start}: {too_few if change.value else too_little}"
    if low > 0:
        answer = "more labels will probably help, although each doubling tends to gain less."
    elif high < 0:
        answer = ("fewer labels gave a better model, so the runs are too short, or differ by "
                  "chance. Train longer, or repeat them with another SEED.")  # fmt: skip
    elif high < _SMALL_GAIN:
        answer = "more labels of this kind will hardly help. Look at the errors, or train longer."
    else:
        answer = too_few
    return (
        f"{start} (95 % interval: {percent(low, sign='+')} to {percent(high, sign='+')}): {answer} "
        "The interval measures the choice of test images, not that of the labeled images or the "
        "seed."
    )
