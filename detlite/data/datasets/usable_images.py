"""Check the entries of a dataset before training, and choose its images."""

from pathlib import Path
from textwrap import shorten

import numpy as np

from detlite.data.annotations.table import AnnotationTable
from detlite.data.annotations.table_findings import table_findings
from detlite.data.findings import Finding
from detlite.data.images import checks
from detlite.data.images.sources import ImageFolder
from detlite.files.errors import DataError
from detlite.structures.names import is_inside

from .options import DatasetOptions

_MAX_PROBLEM = 300  # characters
_SKIP_BAD = (
    "Fix the file (`detlite check` lists all problems), or skip such entries: set "
    "DATASETS.ON_BAD_ANNOTATION skip (skip_bad=True in Python)"
)


def choose_images(
    table: AnnotationTable, folder: ImageFolder | None, options: DatasetOptions, file: object
) -> tuple[np.ndarray, list[Finding]]:
    """Check every annotation and image file, so that training does not stop at the last image.

    Args:
        table: the table of the annotation file.
        folder: the folder of the images; None if there are no images to check.
        options: the options of the dataset.
        file: the name of the annotation file in messages.

    Returns:
        The numbers of the images to use, int32 [images], and what is skipped or reinterpreted.

    Raises:
        DataError: a wrong folder, no usable image, or without `skip_bad` an invalid entry.
    """
    if options.keypoints and not table.keypoint_names:
        raise DataError(
            f"{file}: no category has keypoint names, which keypoints need: "
            '"keypoints": ["nose", "left_eye", ...]'
        )
    if isinstance(folder, Path) and not folder.is_dir():
        raise DataError(
            f"{folder}: the image folder of {file} does not exist. Name the right "
            "one (--images, or `images` in DATASETS.CATALOG, relative to DATASETS.ROOT)"
        )
    for path in table.facts["folders"] if folder is not None else ():
        if not is_inside(path, str(folder)):
            raise DataError(
                f"{file}: has images in {path}, which is not in the image folder {folder}. Name "
                "the folder that contains all images (--images, or `images` in DATASETS.CATALOG), "
                "with `detlite init --images` also if names of files must change for it"
            )
    without_size = np.flatnonzero((table.sizes == 0).any(axis=1))
    if len(without_size) and (options.masks or not table.facts["nameless"]):
        raise DataError(
            f"{file}: image {table.image_ids[without_size[0]]} has no height and width. `detlite "
            "init` writes a file with them"
        )
    bad, image_findings = dict[int, str](), list[Finding]()
    if options.check_images and folder is not None:
        bad, image_findings = checks.check_images(table, folder, options.images)
        name = table.image(0)["file_name"]
        if len(bad) == len(table) and isinstance(folder, Path) and not (folder / name).exists():
            raise DataError(
                f"{folder}: none of the {len(table)} images of {file} is in this folder, for "
                f"example {name}. Name the folder that these names are relative to (--images, or "
                "`images` in DATASETS.CATALOG)"
            )
    problems, count = table.problems(options.selection, limit=1)
    problems, count = [*problems, *bad.values()], count + len(bad)
    if count and not options.skip_bad:
        more = f" (the first of {count} problems)" if count > 1 else ""
        raise DataError(f"{file}: {shorten(problems[0], _MAX_PROBLEM)}{more}. {_SKIP_BAD}")
    found = table_findings(table, options.selection, options.skip_bad, bad, options.empty_effect)
    return _numbers(table, options, [*bad], file), [*found, *image_findings]


def _numbers(
    table: AnnotationTable, options: DatasetOptions, bad: list[int], file: object
) -> np.ndarray:
    """Return the numbers of the images to train on, or to evaluate on."""
    keep = np.ones(len(table), bool)
    if options.train:
        values = table.column("labeled") if options.min_keypoints else 1
        usable = table.counts(options.selection.objects, values)
        keep = usable >= max(options.min_keypoints, 1)
        empty = table.counts() == 0  # not images with only crowds
        if options.background and (keep.any() or empty.all()):
            keep |= empty
    elif options.skip_unlabeled:
        keep = table.counts() > 0
    keep[bad] = False
    if not keep.any():
        required = f" and {options.min_keypoints} keypoints" if options.min_keypoints else ""
        use = ", so it can be evaluated on, but not trained on" * options.train
        raise DataError(f"{file}: no image has a usable annotation{required}{use}")
    return np.flatnonzero(keep).astype(np.int32)
