"""Find all defects of datasets; loading them would stop at the first one."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from yacs.config import CfgNode

from detlite.apps.autoconfig.image_sizes import speck_area
from detlite.apps.autoconfig.image_values import measure_values, spread
from detlite.apps.dataset_formats.coco_files import find_images
from detlite.apps.dataset_formats.find_annotations import find_sets
from detlite.config import ConfigError, load_config
from detlite.data.annotations.notation import parse_numbers
from detlite.data.annotations.rules import boxes_match, mask_area, mask_box
from detlite.data.annotations.selection import Flag, Selection
from detlite.data.annotations.store import open_table
from detlite.data.annotations.table import AnnotationTable
from detlite.data.annotations.table_findings import table_findings
from detlite.data.datasets.build import (
    build_test_datasets,
    build_train_dataset,
    config_findings,
    leaks,
)
from detlite.data.datasets.catalog import locate_dataset
from detlite.data.datasets.coco import CocoDataset
from detlite.data.datasets.options import DatasetOptions, build_dataset_options
from detlite.data.findings import Finding
from detlite.data.images.checks import check_images
from detlite.data.images.formats import open_image
from detlite.data.images.reading import read_image
from detlite.data.images.sources import ImageFolder
from detlite.data.locations import Location, local_copy
from detlite.files.errors import DataError, RemoteError
from detlite.files.progress import progress_bar
from detlite.structures.categories import CategoryMatch
from detlite.threads import in_threads

from .fingerprints import FINGERPRINT, fingerprint
from .inspection_report import Defect, Inspection, Row

_OPTIONS = DatasetOptions(train=True, background=True)
_READERS = max(4, os.cpu_count() or 1)  # threads; some wait for a disk or a network
# Tukey's "far out" rule on logarithms: outliers are further from the quartiles than 3 spreads.
_FAR_OUT, _MIN_SPREAD = 3.0, 0.25
_MIN_VALUES = 20  # below this number, quartiles are not meaningful


def inspect(path: Path, images: Path | None, overrides: Sequence[str] = ()) -> list[Inspection]:
    """Inspect an annotation file, every dataset of a config, or a folder that `init` can read.

    The `overrides` are keys and values of the config.

    Raises:
        ConfigError: the file does not exist, or the config names no datasets.
        DataError: the labels in the folder cannot be converted.
    """
    cfg = load_config(None if path.suffix == ".json" or path.is_dir() else path, overrides)
    options = _options(cfg)
    masks = cfg.MODEL.MASK_ON if "MODEL.MASK_ON" in overrides[::2] else None
    if path.suffix == ".json":
        if not path.is_file():
            raise ConfigError(f"--data {path}: there is no such file")
        with suppress(DataError):  # reported as missing images, or as a file that cannot be read
            images = images or find_images(path)
        return [inspect_dataset(path, images or path.parent, options, masks, measure=True)]
    if path.is_dir():
        sources, _ = find_sets(path, images=images, upright=options.images.exif_orientation)
        return [
            inspect_dataset(source.annotations, source.images,
                            replace(options, train=name != "val"), masks, measure=True)
            for name, source in sources.items()
        ]  # fmt: skip
    datasets = cfg.DATASETS
    names = list(dict.fromkeys([*datasets.TRAIN, *datasets.TEST]))
    if not names:
        raise ConfigError(f"--data {path}: DATASETS.TRAIN and DATASETS.TEST are empty")
    inspections = []
    for name in names:
        kind, annotations, folder = locate_dataset(cfg, name)
        train = name in datasets.TRAIN
        options = replace(_options(cfg, cfg.DATASETS.BACKGROUND_IMAGES), train=train)
        inspection = inspect_dataset(
            annotations, folder, options, options.masks, kind, allow_empty=options.background
        )
        inspections.append(inspection)
        if table := inspection.table:
            inspection.findings += config_findings(cfg, table, inspection.selection, train)
    if not any(inspection.refused for inspection in inspections):
        try:
            shared = check_datasets(cfg)
            for name, inspection in zip(names, inspections, strict=True):
                inspection.findings += shared.get(name, [])
        except (ConfigError, DataError) as error:
            inspections[-1].defects.append(Defect("config", path.name, str(error), True))
    return inspections


def _options(cfg: CfgNode, background: bool = True) -> DatasetOptions:
    options = build_dataset_options(cfg, train=True)
    return replace(options, background=background, min_keypoints=0, check_images=True)


def check_datasets(cfg: CfgNode) -> dict[str, list[Finding]]:
    """Return findings by the name of a test set that concern the training sets, too.

    Raises ConfigError or DataError if a run would refuse the datasets together.
    """
    tests = build_test_datasets(cfg)
    if not cfg.DATASETS.TRAIN:
        return {}
    train = build_train_dataset(cfg)
    found = {test.name: [*leaks(test, train.parts)] for test in tests}
    for test in tests:
        labels = test.name, "the training set"
        match = CategoryMatch(test.categories, train.categories, labels)
        if all(number is None for number in match.numbers):
            raise DataError(f"{test.annotation_file}: its categories are not trained: {match}")
        if match.differ:
            effect = f"They are used: {match}."
            found[test.name].append(
                Finding("categories of test and training set differ", effect, 0)
            )
    return found


def inspect_dataset(
    annotations: Location,
    folder: ImageFolder,
    options: DatasetOptions = _OPTIONS,
    masks: bool | None = None,
    kind: str = "coco",
    measure: bool = False,
    allow_empty: bool = False,
) -> Inspection:
    """Read an annotation file and all of its images, and collect their defects.

    Args:
        annotations, folder, kind: see `CocoDataset`.
        options: without `background`, images without annotations are reported.
        masks: True if every annotation must have a segmentation; None: if most of them have one.
        measure: read images of many bits or channels as `detlite init` would choose.
        allow_empty: a training set may have no objects, as one of several.
    """
    result, refused = Inspection(annotations, folder), not options.skip_bad
    with local_copy(annotations) as file:
        try:
            result.table = table = open_table(file, by_url=kind == "lvis")
        except DataError as error:
            problem = str(error).removeprefix(f"{file}: ")
            result.defects.append(Defect("file", annotations.name, problem, True))
            return result
    selection = replace(options.selection, masks=False)
    with_masks = int(table.counts(replace(selection, masks=True).objects).sum())
    if masks is None:
        masks = 2 * with_masks >= int(table.counts(selection.objects).sum()) > 0
    result.selection = replace(selection, masks=masks)
    for where, problem in table.facts["image_problems"]:
        result.defects.append(Defect("image entry", where.partition(",")[0], problem, refused))
    result.table = table = table.ignoring_below(options.min_area)
    result.defects += small_objects(table, result.selection, options.min_area)
    if measure:
        files = [folder / table.image(n)["file_name"] for n in spread([*range(len(table))])]
        options = replace(options, images=measure_values(files, options.images).options)
    result.image_options = options.images
    bad_images, image_findings = check_images(table, folder, options.images)
    # With `skip_bad`, training skips these, but stops at damage that only decoding reveals.
    result.used = ~(np.isin(np.arange(len(table)), [*bad_images]) & options.skip_bad)
    for row, where, problem in table.bad_annotations(result.selection):
        # A box with four numbers can be drawn, even outside of its image.
        numbers = parse_numbers(row.get("bbox")) or []
        box = numbers if len(numbers) == 4 and min(numbers[2:]) > 0 else None
        defect = Defect("annotation", where, problem, refused, row.get("image_id"), box)
        result.defects.append(defect)
    result.sizes = table.sizes.astype(np.int64)
    result.prints = np.zeros(len(table), FINGERPRINT)
    inspected = in_threads(partial(_inspect, result, table), range(len(table)), _READERS)
    for number, (defects, *found) in enumerate(progress_bar(inspected, "images", len(table))):
        result.defects += defects
        result.sizes[number], result.prints[number] = found
    result.defects += object_warnings(result, table)
    result.defects += shape_warnings(result, table)
    bad = [f"{d.where}: {d.problem}" for d in result.defects if d.kind == "image"]
    result.findings = table_findings(
        table, result.selection, options.skip_bad, dict(enumerate(bad)), options.empty_effect
    )
    result.findings += image_findings
    if not result.refused:  # the loader may still refuse the whole
        try:
            strict = replace(options, masks=masks, background=options.background and allow_empty)
            CocoDataset(annotations, folder, strict, kind=kind)
        except DataError as error:
            result.defects.append(Defect("file", annotations.name, str(error), True))
    return result


def small_objects(
    table: AnnotationTable, selection: Selection, min_area: float
) -> Iterator[Defect]:
    """Yield the objects below INPUT.MIN_AREA, or if it is 0, below the value of `detlite init`."""
    effect = "which INPUT.MIN_AREA ignores"
    if not min_area:
        objects = selection.objects(table.flags)
        areas, ids = table.column("areas")[objects], table.column("category_ids")[objects]
        min_area = speck_area(areas, ids) if len(areas) else 0
        effect = f"a speck: `detlite init` sets INPUT.MIN_AREA {min_area} to ignore it"
    flagged = table.ignoring_below(min_area)
    flags = flagged.flags
    small = (flags & Flag.SMALL > 0) & ~selection.crowds(flags) & ~selection.bad(flags)
    areas = flagged.column("areas")[small].tolist()
    for row, area in zip(flagged.rows(np.flatnonzero(small)), areas, strict=True):
        yield _warning("small object", f"has {area:g} pixels, {effect}", row)


def _inspect(
    result: Inspection, table: AnnotationTable, number: int
) -> tuple[list[Defect], tuple[int, int], tuple[bool, int, Any]]:
    """Return the defects of an image, its size, and its fingerprint if it can be read."""
    row, options = table.image(number), result.image_options
    size, path = (row["height"], row["width"]), result.folder / row["file_name"]
    where = f"image {row['id']} ({row['file_name']})"
    defects = []
    try:
        image = read_image(path, size if row["height"] else None, options)
    except RemoteError as error:
        raise RemoteError(f"{error} (image id {row['id']})") from error
    except DataError as error:
        problem = str(error).removeprefix(f"{path}: ")
        is_refused = bool(result.used[number])
        return [Defect("image", where, problem, is_refused, row["id"])], size, (False, 0, 0)
    with open_image(path, options.max_pixels) as file:
        orientation = file.orientation()
    if orientation != 1:
        problem = f"has EXIF orientation {orientation}: do the annotations fit the upright image?"
        defects.append(Defect("EXIF orientation", where, problem, False, row["id"]))
    if not row["height"]:
        problem = "has no height and width in the annotation file"
        defects.append(Defect("image entry", where, problem, True, row["id"]))
    return defects, (image.shape[-2], image.shape[-1]), fingerprint(image)


def object_warnings(result: Inspection, table: AnnotationTable) -> Iterator[Defect]:
    """Yield duplicate annotations, boxes that do not match their masks, and wrong areas."""
    for number in progress_bar(range(len(table)), "annotations"):
        seen: set[tuple[Any, ...]] = set()
        for row in result.rows(number):
            key = (row["category_id"], *row["bbox"])
            if key in seen:
                problem = "the image has another annotation with this category and box"
                yield _warning("duplicate", f"{problem}: {row['bbox']}", row)
            seen.add(key)
            # The stated size of an unreadable image may be wrong, and too large to draw masks.
            if result.prints["known"][number]:
                yield from _shape_problems(row, result.sizes[number].tolist())


def _shape_problems(row: Row, size: tuple[int, int]) -> Iterator[Defect]:
    """Yield a box that does not match its mask, and a wrong area."""
    mask, area = row.get("segmentation"), row["bbox"][2] * row["bbox"][3]
    areas = [area]
    if mask:
        tight = mask_box(mask, *size)
        if tight is not None and not boxes_match(row["bbox"], tight):
            problem = f"bbox {row['bbox']} does not match its mask, whose box is {tight}"
            yield _warning("box does not match mask", problem, row)
        areas.append(mask_area(mask, *size))
    stated = row.get("area")
    if stated is not None and not min(areas) / 2 <= stated <= max(areas) * 2:
        sizes = " and its mask has ".join(f"{area:g}" for area in areas)
        problem = f"area is {stated:g}, but its box has {sizes} square pixels: "
        problem += "APs, APm and APl count it with the wrong size"
        yield _warning("area", problem, row)


def _warning(kind: str, problem: str, row: Row) -> Defect:
    where = f"annotation {row['id']} (image {row['image_id']})"
    return Defect(kind, where, problem, False, row["image_id"], row["bbox"])


def shape_warnings(result: Inspection, table: AnnotationTable) -> Iterator[Defect]:
    """Yield images, and boxes of each category, with an unusual size or aspect ratio."""
    numbers = np.flatnonzero(result.used & (result.sizes > 0).all(axis=1))
    for index, problem in outliers(result.sizes[numbers, ::-1]):
        row = table.image(int(numbers[index]))
        where = f"image {row['id']} ({row['file_name']})"
        yield Defect("image shape", where, problem, False, row["id"])
    objects = np.flatnonzero(result.selection.objects(table.flags))
    ids, boxes = table.column("category_ids")[objects], table.column("boxes")[objects]
    for category, name in result.categories.items():
        rows = np.flatnonzero(ids == category)
        for index, problem in outliers(boxes[rows, 2:]):
            (row,) = table.rows(objects[rows[index : index + 1]])
            yield _warning("box shape", f"{problem} ({name})", row)


def outliers(sides: np.ndarray) -> Iterator[tuple[int, str]]:
    """Yield (index, explanation) for each unusual size or aspect ratio of (width, height)."""
    if len(sides) < _MIN_VALUES:
        return
    width, height = sides.T.astype(np.float64)
    for name, values in (("size", np.sqrt(width * height)), ("aspect", width / height)):
        logs = np.log(values)
        low, middle, high = np.quantile(logs, (0.25, 0.5, 0.75))
        reach = _FAR_OUT * max(high - low, _MIN_SPREAD)
        for index in np.flatnonzero((logs < low - reach) | (logs > high + reach)).tolist():
            problem = f"{width[index]:g}x{height[index]:g}: the {name} is {values[index]:.3g}, "
            yield index, f"{problem}the median {np.exp(middle):.3g}"
