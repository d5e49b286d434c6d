"""Inspect the data sets that a command line names, and print the defects."""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tqdm import tqdm

from detlite.config import ConfigError, load_config
from detlite.data.datasets.catalog import check_sets, config_findings, locate_dataset
from detlite.data.errors import DataError
from detlite.data.findings import summary
from detlite.data.images.reading import build_image_options

from .inspection import inspect_dataset
from .inspection_report import Defect, Inspection


def inspect(path: Path, images: Path | None) -> list[Inspection]:
    """Inspect an annotation file, or every data set of a config.

    Raises:
        ConfigError: the file does not exist or is a folder, or the config names no data sets.
    """
    if path.suffix == ".json":
        if not path.is_file():
            raise ConfigError(f"--data {path}: there is no such file")
        return [inspect_dataset(path, images or _image_folder(path), progress=_progress)]
    if path.is_dir():
        raise ConfigError(
            f"--data {path} is a folder: write a config with `detlite init --data {path} > "
            "my.yaml`, which also converts labels, and check that"
        )
    cfg = load_config(path)
    datasets = cfg.DATASETS
    names = list(dict.fromkeys([*datasets.TRAIN, *datasets.TEST]))
    if not names:
        raise ConfigError(f"--data {path}: DATASETS.TRAIN and DATASETS.TEST are empty")
    inspections = []
    for name in names:
        kind, annotations, folder = locate_dataset(cfg, name)
        inspections.append(
            inspect_dataset(
                annotations,
                folder,
                by_url=kind == "lvis",
                masks=cfg.MODEL.MASK_ON,
                keypoints=cfg.MODEL.KEYPOINT_ON,
                skip_bad=datasets.ON_BAD_ANNOTATION == "skip",
                crowds_as_objects=datasets.CROWDS_AS_OBJECTS,
                background=datasets.BACKGROUND_IMAGES or name not in datasets.TRAIN,
                image_options=build_image_options(cfg),
                progress=_progress,
            )
        )
        index, selection = inspections[-1].index, inspections[-1].selection
        if index is not None:
            train = name in datasets.TRAIN
            inspections[-1].findings += config_findings(cfg, index, selection, train)
    if not any(inspection.refused for inspection in inspections):
        try:
            check_sets(cfg)
        except (ConfigError, DataError) as error:
            inspections[-1].defects.append(Defect("config", path.name, str(error), True))
    return inspections


def _progress(rows: list[Any], name: str) -> Any:
    """Return a progress bar on standard error; one line in ten seconds if that is a file."""
    return tqdm(rows, name, mininterval=0.1 if sys.stderr.isatty() else 10.0)


def _image_folder(annotations: Path) -> Path:
    """Return the folder `images` next to the file or one folder up, or the file's own folder."""
    for folder in (annotations.parent / "images", annotations.parent.parent / "images"):
        if folder.is_dir():
            return folder
    return annotations.parent


def print_report(inspection: Inspection, max_per_kind: int) -> None:
    """Print statistics and defects, at most `max_per_kind` of each kind."""
    print(inspection.name)
    for name, value in inspection.statistics():
        print(f"  {name}: {value}")
    for name, objects, images in inspection.class_balance():
        print(f"  {name}: {objects} objects in {images} images")
    counts: Counter[str] = Counter()
    for defect in sorted(inspection.defects, key=lambda defect: not defect.refused):
        counts[defect.kind] += 1
        if counts[defect.kind] <= max_per_kind:
            verdict = "refused" if defect.refused else "warning"
            print(f"  {verdict}: {defect.where}: {defect.kind}: {defect.problem}")
    for kind, count in counts.items():
        more = f", {count - max_per_kind} not shown" if count > max_per_kind else ""
        print(f"  {kind}: {count}{more}")
    if inspection.findings:
        print(summary({inspection.name: inspection.findings}))
    refused = len(inspection.refused)
    print(f"  training refuses {refused} entries" if refused else "  training accepts it")
