"""Write the index of an annotation file: read and check all of its entries."""

import hashlib
import json
import logging
import time
from array import array
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np

from detlite.data.datasets.coco_values import parse_integer
from detlite.data.findings import Findings
from detlite.files.errors import DataError, short_repr
from detlite.files.json_files import explain_not_coco, explain_not_json
from detlite.structures.keypoints import keypoint_names

from .annotation_index import VERSION
from .annotation_reader import REPEATED, AnnotationReader
from .build import read_blocks
from .json_stream import NotAnObjectError, read_members
from .normalization import drop_namesakes, read_categories, read_images

_LISTS = ("images", "annotations", "categories")
# Columns of the temporary array of annotations, whose rows are in file order.
_ANNOTATION = np.dtype(
    [("id", "q"), ("span", "q", 2), ("states", "H"), ("image", "q"), ("category_id", "q"),
     ("labeled", "i"), ("key", "q"), ("area", "f")]
)  # fmt: skip
_BLOCK = 1 << 22  # bytes per read
_logger = logging.getLogger(__name__)


def write_index(file: Path, by_url: bool, content: str, index: IO[bytes]) -> None:
    """Read, check and write the whole content of an annotation file with the hash `content`.

    The lists may come in any order, and annotations are checked when all images are known.
    Therefore the texts of all entries are copied first, and read from the index again.

    The arrays are, for I images and A annotations that are grouped by image:

    - "images", "annotations", int64 [I, 2], [A, 2]: start and end of the texts.
    - "image_ids", int64 [I], and "sizes", int64 [I, 2].
    - "first", int64 [I + 1]: the first annotation of each image. Annotations without a valid image
      come last.
    - "positions", int64 [A]: position in the list of the file.
    - "states", uint16 [A]: the flags of `states`.
    - "labeled", int32 [A]: the number of labeled keypoints.
    - "category_ids", int64 [A].
    - "areas", float32 [A]: pixels, 0 if unknown.

    Raises DataError, or OSError if the index cannot be written.
    """
    start = time.perf_counter()
    members, ends = _copy_entries(file, content, index)
    findings = Findings()
    images = read_images(file, _entries(index, ends["images"]), by_url, findings)
    rows = [*_entries(index, ends["categories"])]
    categories, read_category_id = read_categories(file, rows, findings)
    points = len(keypoint_names(sorted(categories, key=lambda row: row["id"])))
    reader = AnnotationReader(images, categories, read_category_id, points, findings)
    table, numbered = _write_annotations(index, ends["annotations"], reader)
    reader.check_boxes(file)
    members = {key: value for key, value in members.items() if key not in _LISTS}
    located = table["image"] < len(images.ids)
    used = set(np.unique(table["category_id"][located]).tolist())
    facts = {
        "version": VERSION,
        "hash": content,
        "by_url": by_url,
        "content": {**members, "categories": drop_namesakes(file, categories, used, findings)},
        "folders": sorted(images.folders),
        "image_problems": images.problems,
        "numbered": numbered,
        "findings": findings.to_json(),
        "examples": reader.examples,
    }
    by_image = np.argsort(table["image"], kind="stable")
    np.savez(
        index,
        table=np.frombuffer(json.dumps(facts).encode(), np.uint8),
        image_ids=np.array(images.ids),
        sizes=np.array(images.sizes),
        images=np.stack([ends["images"][:-1], ends["images"][1:]], axis=1)[images.positions],
        first=np.searchsorted(table["image"][by_image], np.arange(len(images.ids) + 1)),
        annotations=table["span"][by_image],
        positions=by_image,
        states=table["states"][by_image],
        labeled=table["labeled"][by_image],
        category_ids=table["category_id"][by_image],
        areas=table["area"][by_image],
    )
    _logger.info("%s: built its index in %.1f s", file, time.perf_counter() - start)


def _copy_entries(
    file: Path, content: str, index: IO[bytes]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Write the texts of the entries of all lists.

    Returns:
        The members of the file, whose lists are empty; and for each list the positions of its N
        texts, int64 [N + 1]: text n starts at position n and ends at position n + 1.
    """
    members: dict[str, Any] = {}
    ends: dict[str, array[int]] = {}
    problems: dict[str, str] = {}
    digest = hashlib.blake2b(digest_size=20)
    try:
        for key, value, text in read_members(read_blocks(file, digest.update), _LISTS):
            if text is None:  # the last of several members with one key counts
                members[key], ends[key] = value, array("q", [index.tell()])
                problems[key] = "" if isinstance(value, list) else f", but is {short_repr(value)}"
            else:
                if not isinstance(value, dict) and not problems[key]:
                    problems[key] = f", but entry {len(ends[key]) - 1} is {short_repr(value)}"
                ends[key].append(_write_text(index, text)[1])
    except DataError:
        raise
    except NotAnObjectError as error:
        hint = explain_not_json(file, error)
        raise DataError(
            f"{file}: not in COCO format: a JSON {error}, not an object{hint}"
        ) from error
    except ValueError as error:
        hint = explain_not_json(file, error)
        raise DataError(f"{file}: not valid JSON: {error}{hint}") from error
    except RecursionError as error:
        raise DataError(f"{file}: not in COCO format: the JSON is nested too deeply") from error
    if digest.hexdigest() != content:
        raise DataError(f"{file}: the file changed while it was read; start again")
    for key in _LISTS:
        if members.get(key) is None:
            hint = explain_not_coco({*members})
            raise DataError(f"{file}: not in COCO format: {key!r} is missing{hint}")
        if problems[key]:
            problem = f"{key!r} must be a list of objects{problems[key]}"
            raise DataError(f"{file}: not in COCO format: {problem}")
    index.flush()
    return members, {key: np.array(ends[key]) for key in _LISTS}


def _entries(index: IO[bytes], ends: np.ndarray) -> Iterator[dict[str, Any]]:
    """Parse the written texts of a list."""
    with open(index.name, "rb", buffering=_BLOCK) as written:
        written.seek(ends[0])
        for start, end in pairwise(ends):
            yield json.loads(written.read(end - start))


def _write_annotations(
    index: IO[bytes], ends: np.ndarray, reader: AnnotationReader
) -> tuple[np.ndarray, bool]:
    """Read the annotations and write the texts of annotations that are not in COCO's notation.

    Returns _ANNOTATION [A], and True if the ids are not unique integers, so that positions replace
    them.
    """
    table = np.zeros(len(ends) - 1, _ANNOTATION)
    unnamed = ""
    for position, row in enumerate(_entries(index, ends)):
        read, *values = reader.read(row, position)
        changed = read is not row
        span = _write_text(index, json.dumps(read)) if changed else ends[position : position + 2]
        annotation_id = row.get("id")
        if type(annotation_id) is not int or parse_integer(annotation_id) is None:
            unnamed = unnamed or f"annotation at position {position} has id {annotation_id!r}"
            annotation_id = 0
        table[position] = (annotation_id, span, *values)
    ids, counts = np.unique(table["id"], return_counts=True)
    numbered = bool(unnamed) or len(ids) < len(table)
    if numbered:
        reader.findings.add(
            "ids of annotations that are not different integers",
            "All annotations are numbered from 1 in the order of the file.",
            unnamed or f"{counts.max()} annotations have the id {ids[counts.argmax()]}",
            "file",
        )
    first = np.unique(table["key"], return_index=True)[1]
    if len(repeated := np.setdiff1d(np.arange(len(table)), first)):
        effect = "All are trained and measured. `detlite check` lists them: delete the repeats."
        number = repeated[0] + 1 if numbered else table["id"][repeated[0]]
        reader.findings.add(REPEATED, effect, f"annotation {number}", count=len(repeated))
    return table, numbered


def _write_text(file: IO[bytes], text: str) -> tuple[int, int]:
    """Write a text; return its start and end."""
    start = file.tell()
    return start, start + file.write(text.encode("utf-8", "surrogatepass"))
