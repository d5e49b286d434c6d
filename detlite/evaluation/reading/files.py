"""Read ground truth and detections from COCO files or from memory, and check that they fit.

Reports, `evaluate_coco` and comparisons of other frameworks' detections read with these functions.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from detlite.data.datasets.ground_truth import read_coco_gt
from detlite.evaluation.results import Results
from detlite.files.errors import DataError

from .columns import Columns
from .entries import (
    available_kinds,
    complete_entries,
    read_entries,
    resolve_ids,
)
from .ground_truth import Truth, check_results
from .plausibility import check_plausible

logger = logging.getLogger(__name__)


def read_truth(
    source: Truth | Path | str | dict[str, Any],
    kinds: Sequence[str] = ("bbox",),
    skip_bad: bool = False,
) -> Truth:
    """Return the ground truth in a COCO annotation file, or in its content.

    See `read_coco_gt` for how its entries are read, the arguments and the errors.
    """
    return read_coco_gt(source, kinds, skip_bad)


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
