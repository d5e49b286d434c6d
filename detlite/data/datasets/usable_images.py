"""Check the entries of a dataset before training, and choose its images."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import NoReturn

import numpy as np

from detlite.data.findings import Finding
from detlite.data.images import checks
from detlite.data.images.sources import ImageFolder
from detlite.data.index.annotation_index import AnnotationIndex
from detlite.files.errors import DataError

from .options import DatasetOptions

_MAX_PROBLEM = 300  # characters
_SKIP_BAD = (
    "Fix the file with `detlite check --repair`, or skip such entries: set "
    "DATASETS.ON_BAD_ANNOTATION skip (skip_bad=True in Python)"
)


def choose_images(
    index: AnnotationIndex, folder: ImageFolder, options: DatasetOptions, file: object
) -> tuple[np.ndarray, list[Finding]]:
    """Check every annotation and image file, so that training does not stop at the last image.

    Args:
        index: the index of the annotation file.
        folder: the folder of the images.
        options: the options of the dataset.
        file: the name of the annotation file in messages.

    Returns:
        The numbers of the images to use, int64 [images], and what is skipped or reinterpreted.

    Raises:
        DataError: a wrong folder, no usable image, or without `skip_bad` an invalid entry.
    """
    if options.keypoints and not index.keypoint_names:
        raise DataError(
            f"{file}: no category has keypoint names, which keypoints need: "
            '"keypoints": ["nose", "left_eye", ...]'
        )
    if isinstance(folder, Path) and not folder.is_dir():
        raise DataError(
            f"{folder}: the image folder of {file} does not exist. Name the right "
            "one (--images, or `images` in DATASETS.CATALOG, relative to DATASETS.ROOT)"
        )
    without_size = np.flatnonzero((index.sizes == 0).any(axis=1))
    if len(without_size):
        raise DataError(
            f"{file}: image {index.image_ids[without_size[0]]} has no height and width. `detlite "
            "init` and `detlite check --repair` write a file with them"
        )
    bad, image_findings = _check_images(index, folder, options, file)
    problems, count = index.problems(options.selection, limit=1)
    problems, count = [*problems, *bad.values()], count + len(bad)
    if count and not options.skip_bad:
        refuse(problems, count, file)
    found = index.findings(options.selection, options.skip_bad, bad, options.empty_effect)
    return _numbers(index, options, [*bad], file), [*found, *image_findings]


def refuse(problems: Sequence[str], count: int, file: object, advice: str = _SKIP_BAD) -> NoReturn:
    """Raise a DataError for the first of `count` problems of a file."""
    more = f" (the first of {count} problems)" if count > 1 else ""
    raise DataError(f"{file}: {shorten(problems[0], _MAX_PROBLEM)}{more}. {advice}")


def _check_images(
    index: AnnotationIndex, folder: ImageFolder, options: DatasetOptions, file: object
) -> tuple[dict[int, str], list[Finding]]:
    """Return the problems of image files by number, and findings; see `checks.check_images`."""
    if not options.check_images:
        return {}, []
    bad, findings = checks.check_images(index, folder, options.images)
    name, count = index.image(0)["file_name"], len(index.image_ids)
    if len(bad) == count and isinstance(folder, Path) and not (folder / name).exists():
        raise DataError(
            f"{folder}: none of the {count} images of {file} is in this folder, for example "
            f"{name}. Name the folder that these names are relative to (--images, or `images` in "
            "DATASETS.CATALOG)"
        )
    return bad, findings


def _numbers(
    index: AnnotationIndex, options: DatasetOptions, bad: list[int], file: object
) -> np.ndarray:
    """Return the numbers of the images to train on, or to evaluate on."""
    keep = np.ones(len(index.image_ids), bool)
    if options.train:
        values = index.arrays["labeled"] if options.min_keypoints else 1
        usable = index.counts(options.selection.objects, values)
        keep = usable >= max(options.min_keypoints, 1)
        if options.background and keep.any():
            keep |= index.counts() == 0  # not images with only crowds
    elif options.skip_unlabeled:
        keep = index.counts() > 0
    keep[bad] = False
    if not keep.any():
        required = f" and {options.min_keypoints} keypoints" if options.min_keypoints else ""
        raise DataError(f"{file}: no image has a usable annotation{required}")
    return np.flatnonzero(keep)
