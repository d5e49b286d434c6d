"""List images without labels, apart from those that a dataset already contains."""

import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from detlite.apps.batch_predict.input_sources import list_images
from detlite.apps.dataset_check.near_duplicates import duplicate_groups
from detlite.data import CocoDataset
from detlite.data.images.pixels import ImageOptions
from detlite.data.images.reading import read_image
from detlite.data.images.sources import ImageSource
from detlite.files.download import is_url
from detlite.files.errors import DataError

logger = logging.getLogger(__name__)


def images_of(datasets: Iterable[CocoDataset]) -> list[ImageSource]:
    """Return the images of datasets, which are files or stored in shards."""
    return [data.image_path(index) for data in datasets for index in range(len(data))]


def list_unlabeled(
    inputs: Sequence[str],
    known: Sequence[ImageSource],
    options: ImageOptions,
    exclude: Path | None = None,
) -> list[Path]:
    """List the images of `inputs` that are not among the `known` ones.

    `inputs` and `exclude` are described in `list_images`.

    Raises:
        DataError: no image is left, or none can be read with `options`.
    """
    where = ", ".join(inputs)
    names = list(dict.fromkeys(list_images(inputs, exclude)))
    if urls := [name for name in names if is_url(name)]:
        raise DataError(f"{urls[0]}: images without labels must be local files: download them")
    for source in inputs:
        if str(Path(source)) in names and not os.path.lexists(source):
            raise DataError(f"{source} does not exist: name a folder, a glob or a list (.txt)")
    # A backslash separates folders in COCO files.
    if odd := [name for name in names if "\\" in Path(name).as_posix()]:
        logger.warning("%s: %d of %d images are left out, because their paths contain a backslash",
                       where, len(odd), len(names))  # fmt: skip
        names = [name for name in names if name not in odd]
    taken = {path.resolve() for path in known if isinstance(path, Path)}
    files = [path for path in map(Path, names) if path.resolve() not in taken]
    if not files:
        raise DataError(
            f"{where}: all {len(names)} images are in the training or test sets already: add "
            "images without labels"
        )
    if len(files) < len(names):
        logger.warning("%s: %d of %d images are left out, because they are in the training or "
                       "test sets", where, len(names) - len(files), len(names))  # fmt: skip
    problem = None
    for file in files:
        try:
            read_image(file, options=options)
        except DataError as error:
            problem = problem or error
        else:
            return files
    raise DataError(f"{where}: none of the {len(files)} images can be read: {problem}")


def drop_duplicates(files: Sequence[Path], known: Sequence[ImageSource]) -> list[Path]:
    """Return the files that are not nearly identical to a known image or an earlier file."""
    groups = duplicate_groups([*known, *files])
    kept = [file for k, file in enumerate(files, start=len(known)) if groups[k] == k]
    if dropped := len(files) - len(kept):
        logger.warning("%d of %d images without labels are left out, because they are nearly "
                       "identical to another one or to an image of the training or test sets",
                       dropped, len(files))  # fmt: skip
    return kept
