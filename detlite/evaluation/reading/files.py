"""Read ground truth and detections from COCO files or from memory, and check that they fit.

Reports, `evaluate_coco` and comparisons of other frameworks' detections read with these functions.
"""

import logging
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pycocotools.coco import COCO

from detlite.data.datasets.coco import CocoDataset
from detlite.data.datasets.ground_truth import build_coco_gt
from detlite.data.datasets.options import DatasetOptions
from detlite.data.locations import errors_naming
from detlite.evaluation.results import Results
from detlite.files.errors import DataError
from detlite.files.json_files import read_json

from .columns import Columns
from .entries import (
    available_kinds,
    complete_entries,
    read_columns,
    read_entries,
    resolve_ids,
    to_json,
)
from .ground_truth import GroundTruthFile, Truth, check_results
from .plausibility import check_plausible
from .standard_form import complete, is_standard

logger = logging.getLogger(__name__)

# Fields that the kernel skips: regions to ignore, and CVAT's rotated boxes.
_MARKS = re.compile(rb'"isCrowd"|"(ignore|rotation)"\s*:\s*(?!0(\.0*)?\s*[,}]|false|null|\s)')


def read_truth(
    source: Truth | Path | str | dict[str, Any],
    kinds: Sequence[str] = ("bbox",),
    skip_bad: bool = False,
) -> Truth:
    """Return the ground truth in a COCO annotation file, or in its content.

    Entries are read and checked like those of datasets: ids and numbers may be text, missing
    annotation ids, boxes and areas are computed, boxes far beyond their image are clipped, regions
    may be marked by `ignore`, and unusable objects are errors. The names of files and categories
    may be missing, and without "segm" also the sizes of images.

    Args:
        source: a file, its content, or a ground truth that was read before.
        kinds: the IoU types to measure; "segm" and "keypoints" need masks and keypoints.
        skip_bad: ignore unusable annotations instead of raising an error.

    Raises:
        DataError: the file cannot be read, or has an unusable annotation.
    """
    if isinstance(source, COCO | GroundTruthFile):
        return source
    if isinstance(source, dict):
        return _read_content(source, kinds, skip_bad, "the ground truth")
    return _read_truth(Path(source), kinds, skip_bad, str(source))


def _read_content(
    content: dict[str, Any], kinds: Sequence[str], skip_bad: bool, name: str
) -> Truth:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "annotations.json"
        file.write_text(to_json(content))
        with errors_naming(name, instead_of=file):
            return _read_truth(file, kinds, skip_bad, name)


def _read_truth(file: Path, kinds: Sequence[str], skip_bad: bool, name: str) -> Truth:
    columns, content = read_columns(file) or (None, {})
    standard = columns is not None and is_standard(columns, content, kinds)
    if standard and not _MARKS.search(file.read_bytes()):
        images, categories = (
            {row["id"]: row for row in content[key]} for key in ("images", "categories")
        )
        return GroundTruthFile(content, images, categories, columns)
    with suppress(DataError):  # which the dataset explains
        content = read_json(file)
    if isinstance(content, dict) and complete(content, kinds):
        return _read_content(content, kinds, skip_bad, name)
    options = DatasetOptions(
        masks="segm" in kinds, keypoints="keypoints" in kinds, skip_bad=skip_bad, check_images=False
    )
    dataset = CocoDataset(file, file.parent, options)
    for text in filter(None, (finding.without_advice() for finding in dataset.findings)):
        logger.warning("%s: %s", name, text)
    return build_coco_gt(dataset)


def read_results(
    source: Results | Path | str | Iterable[Mapping[str, Any]],
    truth: Truth,
    kinds: Sequence[str] = (),
    max_dets: int = 0,
) -> Results:
    """Return the detections in a COCO results file, or in its entries.

    A file may also have an entry per line, or contain the entries as "annotations", "results",
    "predictions" or "detections". Images and categories may be named: by `file_name` and
    `category_name`, by text as ids, or by the file's own "images" and "categories". Masks may be
    polygons or uncompressed RLEs. Boxes that are missing in some entries are computed from the
    masks. If only some entries have a mask or keypoints, the others count as wrong. Scores may be
    in percent. `check_plausible` compares the results with the ground truth.

    Args:
        source: a file, its entries, or results that were read before.
        truth: the ground truth that `read_truth` returned.
        kinds: the required IoU types; empty: boxes, and masks and keypoints if the file has them.
        max_dets: warn about images with more detections of a category than this; 0: do not.

    Raises:
        DataError: the file cannot be read, an entry is invalid, or the entries are not detections
            in the pixels of these images.
    """
    if isinstance(source, Results):
        check_results(source, truth, kinds)
        return source
    name = str(source) if isinstance(source, Path | str) else "the results"
    entries = read_entries(source, name)
    kinds = sorted(available_kinds(entries, kinds, name))
    try:
        if isinstance(entries, Columns):
            results = Results.from_columns(entries, kinds)
        else:
            resolve_ids(entries, truth, name)
            complete_entries(entries, truth, kinds, name)
            results = Results.from_coco(entries, kinds)
        check_results(results, truth, kinds)
        return check_plausible(results, truth, name, max_dets)
    except DataError as error:
        if str(error).startswith("ground truth"):
            raise
        raise DataError(f"{name}: {error}") from error


def kinds_of(source: Path | str) -> set[str]:
    """Return the IoU types that a results file has, see `read_results`."""
    return available_kinds(read_entries(source, str(source)), (), "")
