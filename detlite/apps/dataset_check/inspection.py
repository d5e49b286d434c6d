"""Find every defect of a data set, where loading it would stop at the first."""

import json
import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path

from detlite.data.datasets.coco import CocoDataset
from detlite.data.datasets.coco_checks import annotation_problem, box_problem, keypoint_names
from detlite.data.errors import DataError, RemoteError, short_repr
from detlite.data.file_type import explain_not_coco, explain_not_json
from detlite.data.loading.image_io import (
    DEFAULT_OPTIONS,
    ImageOptions,
    open_image,
    read_image,
    read_orientation,
)
from detlite.data.remote.locations import Location, local_copy
from detlite.data.remote.shards import ImageFolder, image_file_of

from .annotation_warnings import object_warnings, shape_warnings
from .inspection_report import Defect, Inspection, Row
from .near_duplicates import Fingerprint, Fingerprints, fingerprint

_READERS = max(4, os.cpu_count() or 1)  # threads; some wait for a disk or a network


def inspect_dataset(
    annotations: Location,
    folder: ImageFolder,
    *,
    by_url: bool = False,
    masks: bool | None = None,
    keypoints: bool = False,
    image_options: ImageOptions = DEFAULT_OPTIONS,
    progress: Callable[[list[Row]], Iterable[Row]] = iter,
) -> Inspection:
    """Read an annotation file and all of its images, and collect their defects.

    Args:
        annotations, folder: see `CocoDataset`.
        by_url: True if file names are the ends of `coco_url`, as in LVIS.
        masks: True if every annotation must have a segmentation; None: if any of them has one.
        keypoints: True if every annotation must have keypoints.
        image_options: see `read_image`.
        progress: wraps the list of images while they are read, for example in a progress bar.
    """
    result = Inspection(annotations, folder)
    _read_annotations(result, by_url)
    result.images = _valid_rows(result, "images", {"file_name": str, "height": int, "width": int})
    result.category_rows = list(_valid_rows(result, "categories", {"name": str}).values())
    rows = rows_of(result.content, "annotations")
    if masks is None:
        masks = any(row.get("segmentation") for row in rows)
    result.masks = masks
    result.keypoints = len(keypoint_names(result.category_rows)) if keypoints else 0
    _inspect_annotations(result, rows)
    images = progress(list(result.images.values()))
    _inspect_images(result, images, image_options)
    result.defects += [*object_warnings(result), *shape_warnings(result)]
    if not result.refused:  # the loader has the last word
        try:
            CocoDataset(
                annotations,
                folder,
                kind="lvis" if by_url else "coco",
                train=True,
                masks=masks,
                keypoints=keypoints,
                image_options=image_options,
            )
        except DataError as error:
            result.defects.append(Defect("file", annotations.name, str(error), True))
    return result


def _read_annotations(result: Inspection, by_url: bool) -> None:
    """Parse the annotation file and record where it deviates from COCO's format."""

    def refuse(problem: str) -> None:
        result.defects.append(Defect("file", result.annotations.name, problem, True))

    try:
        with local_copy(result.annotations) as file:
            content = json.loads(file.read_bytes())
    except DataError:  # a URL that cannot be read
        raise
    except OSError as error:
        return refuse(f"cannot be read ({error.strerror})")
    except RecursionError:
        return refuse("is not in COCO format: nested too deeply")
    except ValueError as error:
        path = result.annotations
        why = explain_not_json(path, error) if isinstance(path, Path) else ""
        return refuse(f"is not JSON: {error}{why}")
    if not isinstance(content, dict):
        return refuse(f"is not in COCO format: holds a {type(content).__name__}")
    for key in ("images", "annotations", "categories"):
        rows = content.get(key)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            why = explain_not_coco({*content})
            refuse(f"is not in COCO format: {key!r} is not a list of objects{why}")
    for image in rows_of(content, "images"):
        # As in the loader: LVIS v1 only has the URL, which ends in <split>/<file name>.
        if (by_url or "file_name" not in image) and isinstance(image.get("coco_url"), str):
            image["file_name"] = "/".join(image["coco_url"].split("/")[-2:])
    result.content = content
    return None


def rows_of(content: Row, key: str) -> list[Row]:
    """Return the objects in a list of an annotation file, without entries of other types."""
    rows = content.get(key)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _valid_rows(result: Inspection, key: str, fields: dict[str, type]) -> dict[int, Row]:
    """Return the valid entries of `images` or `categories` by id, and record the others."""
    valid: dict[int, Row] = {}
    names: dict[str, int] = {}
    entry = {"images": "image", "categories": "category"}[key]
    for row in rows_of(result.content, key):
        wrong = [
            name for name, kind in {"id": int, **fields}.items() if type(row.get(name)) is not kind
        ]
        where = f"{entry} {short_repr(row.get('id'))}"
        if wrong:
            problem = f"has {wrong[0]}: {short_repr(row.get(wrong[0]))}"
        elif row["id"] in valid:
            problem = "the id occurs twice"
        elif key == "images" and min(row["height"], row["width"]) < 1:
            problem = f"has size {row['width']}x{row['height']}"
        elif key == "categories" and names.setdefault(row["name"], row["id"]) != row["id"]:
            problem = f"has the name of category {names[row['name']]}, {short_repr(row['name'])}"
        else:
            valid[row["id"]] = row
            continue
        result.defects.append(Defect(f"{entry} entry", where, problem, True))
    return valid


def _inspect_annotations(result: Inspection, rows: list[Row]) -> None:
    sizes, category_ids = result.sizes, set(result.categories)
    ids: set[int] = set()
    for position, row in enumerate(rows):
        problem = annotation_problem(row, sizes, category_ids, result.masks, result.keypoints)
        kind = "annotation"
        if problem is None and row["id"] in ids:
            kind, problem = "repeated id", "the id occurs twice"
        if problem is None:
            ids.add(row["id"])
            result.objects.append(row)
            continue
        image_id, name = row.get("image_id"), row.get("id", f"at position {position}")
        where = f"annotation {short_repr(name)} (image {image_id})"
        # A box with four numbers can be drawn, even outside of its image.
        box = row.get("bbox") if box_problem(row.get("bbox"), 1 << 30, 1 << 30) is None else None
        result.defects.append(Defect(kind, where, problem, True, image_id, box))


def _inspect_images(result: Inspection, rows: Iterable[Row], options: ImageOptions) -> None:
    """Read all images with several threads; defects are recorded in the order of the rows."""
    source = iter(rows)
    pending: deque[tuple[Row, Future[tuple[list[Defect], Fingerprint | None]]]] = deque()
    with ThreadPoolExecutor(_READERS) as pool:
        while True:
            for image in islice(source, 2 * _READERS - len(pending)):
                pending.append((image, pool.submit(_inspect, result.folder, image, options)))
            if not pending:
                return
            image, future = pending.popleft()
            defects, print_ = future.result()
            result.defects += defects
            if print_ is not None:
                result.fingerprints.add(print_)
                result.fingerprinted.append(image["id"])


def _inspect(
    folder: ImageFolder, row: Row, options: ImageOptions
) -> tuple[list[Defect], Fingerprint | None]:
    """Return the defects of an image, and its fingerprint if it can be read."""
    path = image_file_of(folder, row)
    where = f"image {row['id']} ({row['file_name']})"
    try:
        image = read_image(path, (row["height"], row["width"]), options)
    except RemoteError as error:
        raise RemoteError(f"{error} (image id {row['id']})") from error
    except DataError as error:
        problem = str(error).removeprefix(f"{path}: ")
        return [Defect("image", where, problem, True, row["id"])], None
    with open_image(path, options.max_pixels) as file:
        orientation = read_orientation(file)
    if orientation == 1:
        return [], fingerprint(image)
    problem = f"has EXIF orientation {orientation}: do the annotations fit the upright image?"
    return [Defect("EXIF orientation", where, problem, False, row["id"])], fingerprint(image)


def near_duplicates(sets: list[Inspection]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the pairs of nearly identical images, each as (index of the set, image id)."""
    joined = Fingerprints()
    owners: list[tuple[int, int]] = []
    for index, result in enumerate(sets):
        joined.extend(result.fingerprints)
        owners += [(index, image_id) for image_id in result.fingerprinted]
    return [(owners[first], owners[second]) for first, second in joined.pairs()]
