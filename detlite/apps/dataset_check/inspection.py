"""Every defect of a data set, where loading it would stop at the first."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

from detlite.data.datasets.coco import CocoDataset
from detlite.data.datasets.coco_checks import annotation_problem, box_problem, keypoint_names
from detlite.data.errors import DataError, RemoteError, short_repr
from detlite.data.file_type import explain_not_coco, explain_not_json
from detlite.data.loading.image_io import MAX_PIXELS, open_image, read_image, read_orientation
from detlite.data.remote.locations import Location, local_copy
from detlite.data.remote.shards import ImageFolder, image_file_of

from .annotation_warnings import odd_objects, odd_shapes
from .inspection_report import Defect, Inspection, Row
from .near_duplicates import Fingerprint, Fingerprints, fingerprint

_READERS = max(4, os.cpu_count() or 1)  # threads; some wait for a disk or a network


def inspect_set(
    annotations: Location,
    folder: ImageFolder,
    *,
    by_url: bool = False,
    masks: bool | None = None,
    keypoints: bool = False,
    max_pixels: int = MAX_PIXELS,
    image_bits: int = 16,
    exif_orientation: bool = True,
    progress: Callable[[list[Row]], Iterable[Row]] = iter,
) -> Inspection:
    """Reads an annotation file and all of its pictures, and collects what is wrong with them.

    Args:
        annotations, folder: as `CocoDataset` takes them.
        by_url: pictures are called as `coco_url` ends, as in LVIS.
        masks: every annotation must have a segmentation. None: if any has one.
        keypoints: every annotation must have keypoints.
        max_pixels, image_bits, exif_orientation: see `read_image`.
        progress: wraps the list of images while pictures are read.
    """
    found = Inspection(annotations, folder)
    _read(found, by_url)
    found.images = _sound_rows(found, "images", {"file_name": str, "height": int, "width": int})
    found.category_rows = list(_sound_rows(found, "categories", {"name": str}).values())
    rows = rows_of(found.content, "annotations")
    if masks is None:
        masks = any(row.get("segmentation") for row in rows)
    found.masks = masks
    found.keypoints = len(keypoint_names(found.category_rows)) if keypoints else 0
    _inspect_annotations(found, rows)
    images = progress(list(found.images.values()))
    _inspect_pictures(found, images, max_pixels, image_bits, exif_orientation)
    found.defects += [*odd_objects(found), *odd_shapes(found)]
    if not found.refused:
        try:
            CocoDataset(
                annotations,
                folder,
                kind="lvis" if by_url else "coco",
                train=True,
                masks=masks,
                keypoints=keypoints,
                max_pixels=max_pixels,
                image_bits=image_bits,
                exif_orientation=exif_orientation,
            )
        except DataError as error:
            found.defects.append(Defect("file", annotations.name, str(error), True))
    return found


def _read(found: Inspection, by_url: bool) -> None:
    """Reads the annotation file as far as it has COCO's form."""

    def refuse(problem: str) -> None:
        found.defects.append(Defect("file", found.annotations.name, problem, True))

    try:
        with local_copy(found.annotations) as file:
            content = json.loads(file.read_bytes())
    except DataError:  # a URL that cannot be read
        raise
    except OSError as error:
        refuse(f"cannot be read ({error.strerror})")
        return
    except RecursionError:
        refuse("is not in COCO form: nested too deep")
        return
    except ValueError as error:
        named = found.annotations
        why = explain_not_json(named, error) if isinstance(named, Path) else ""
        refuse(f"is not JSON: {error}{why}")
        return
    if not isinstance(content, dict):
        refuse(f"is not in COCO form: holds a {type(content).__name__}")
        return
    for key in ("images", "annotations", "categories"):
        rows = content.get(key)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            why = explain_not_coco({*content})
            refuse(f"is not in COCO form: {key!r} is not a list of objects{why}")
    for image in rows_of(content, "images"):
        # As the loader does: LVIS v1 has the address alone, which ends in <split>/<picture>.
        if (by_url or "file_name" not in image) and isinstance(image.get("coco_url"), str):
            image["file_name"] = "/".join(image["coco_url"].split("/")[-2:])
    found.content = content


def rows_of(content: Row, key: str) -> list[Row]:
    """The entries of a list of an annotation file, without what is no object."""
    rows = content.get(key)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _sound_rows(found: Inspection, key: str, fields: dict[str, type]) -> dict[int, Row]:
    """The entries of `images` or `categories` that can be used, by id."""
    sound: dict[int, Row] = {}
    names: dict[str, int] = {}
    one = {"images": "image", "categories": "category"}[key]
    for row in rows_of(found.content, key):
        wrong = [
            name for name, kind in {"id": int, **fields}.items() if type(row.get(name)) is not kind
        ]
        where = f"{one} {short_repr(row.get('id'))}"
        if wrong:
            problem = f"has {wrong[0]}: {short_repr(row.get(wrong[0]))}"
        elif row["id"] in sound:
            problem = "the id occurs twice"
        elif key == "images" and min(row["height"], row["width"]) < 1:
            problem = f"has size {row['width']}x{row['height']}"
        elif key == "categories" and names.setdefault(row["name"], row["id"]) != row["id"]:
            problem = f"has the name of category {names[row['name']]}, {short_repr(row['name'])}"
        else:
            sound[row["id"]] = row
            continue
        found.defects.append(Defect(f"{one} entry", where, problem, True))
    return sound


def _inspect_annotations(found: Inspection, rows: list[Row]) -> None:
    sizes, category_ids = found.sizes, set(found.categories)
    seen: set[int] = set()
    for position, row in enumerate(rows):
        problem = annotation_problem(row, sizes, category_ids, found.masks, found.keypoints)
        kind = "annotation"
        if problem is None and row["id"] in seen:
            kind, problem = "repeated id", "the id occurs twice"
        image_id = row.get("image_id")
        if problem is None:
            seen.add(row["id"])
            found.objects.append(row)
            continue
        where = (
            f"annotation {short_repr(row.get('id', f'at position {position}'))} (image {image_id})"
        )
        found.defects.append(
            Defect(kind, where, problem, True, image_id, _drawable(row.get("bbox")))
        )


def _drawable(box: Any) -> Any:
    """A box that can be drawn, wherever it lies."""
    return box if box_problem(box, 1 << 30, 1 << 30) is None else None


def _inspect_pictures(found: Inspection, rows: Iterable[Row], *how: Any) -> None:
    """Reads all pictures, several at a time; what is found comes in the order of the rows."""
    source = iter(rows)
    looking: deque[tuple[Row, Future[tuple[list[Defect], Fingerprint | None]]]] = deque()
    with ThreadPoolExecutor(_READERS) as pool:
        while True:
            for image in islice(source, 2 * _READERS - len(looking)):
                looking.append((image, pool.submit(_look, found.folder, image, *how)))
            if not looking:
                return
            image, future = looking.popleft()
            defects, one = future.result()
            found.defects += defects
            if one is not None:
                found.fingerprints.add(one)
                found.fingerprinted.append(image["id"])


def _look(folder: ImageFolder, image: Row, *how: Any) -> tuple[list[Defect], Fingerprint | None]:
    """What is wrong with a picture, and its fingerprint if it can be read."""
    path = image_file_of(folder, image)
    where = f"image {image['id']} ({image['file_name']})"
    try:
        picture = read_image(path, (image["height"], image["width"]), *how)
    except RemoteError as error:
        raise RemoteError(f"{error} (image id {image['id']})") from error
    except DataError as error:
        problem = str(error).removeprefix(f"{path}: ")
        return [Defect("picture", where, problem, True, image["id"])], None
    with open_image(path, how[0]) as file:
        turned = read_orientation(file)
    if turned == 1:
        return [], fingerprint(picture)
    problem = f"is turned by EXIF orientation {turned}: do the annotations fit the upright picture?"
    defect = Defect("EXIF orientation", where, problem, False, image["id"])
    return [defect], fingerprint(picture)


def near_duplicates(sets: list[Inspection]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Pictures that are nearly the same, in one set or across: pairs of (set, image id)."""
    joined = Fingerprints()
    owners: list[tuple[int, int]] = []
    for number, one in enumerate(sets):
        joined.extend(one.fingerprints)
        owners += [(number, image_id) for image_id in one.fingerprinted]
    return [(owners[first], owners[second]) for first, second in joined.pairs()]
