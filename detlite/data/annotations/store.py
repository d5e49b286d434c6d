"""Open the table of an annotation file, and build it if the cache does not have it.

The name of a table is a hash of the content of its annotation file. A copied or touched file needs
no new table, and a change is never missed. Reading the whole file at every start would take long on
a slow disk, so a note stores the hash for the size, times and inode of the file.

Letters in shapes: I images, A annotations.
"""

import contextlib
import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from detlite.data.findings import Findings
from detlite.files import cache
from detlite.files.atomic_write import atomic_open
from detlite.files.errors import DataError
from detlite.files.progress import progress_bar
from detlite.files.reading import open_file
from detlite.structures.keypoints import keypoint_names

from .heads import ImageTable, drop_namesakes, read_categories, read_images
from .judge import JUDGED, NO_ID, Judge, annotation_name
from .notation import Row, parse_row
from .scan import Document, document_of, read_document, without_gc
from .selection import Flag
from .table import END, VERSION, AnnotationTable, DamagedTableError

_BLOCK = 1 << 22  # bytes per read
_ENTRIES = 1 << 12  # annotations that are judged together
_PRIME = np.uint64(0x9E3779B97F4A7C15)  # of Fibonacci hashing
REPEATED = "annotations with the image, category and box of another one"
_logger = logging.getLogger(__name__)


def open_table(file: Path, by_url: bool = False, nameless: bool = False) -> AnnotationTable:
    """Open the table of an annotation file; build it if there is none for this content.

    If several processes ask for a table, one builds it. If the cache folder cannot be written, the
    table is built in a temporary folder of this process. Invalid annotations are flagged. Raises
    DataError if the file is not valid COCO otherwise, or if there is no space for the table.

    Args:
        file: the annotation file.
        by_url: images are named by their `coco_url`, see `set_file_name`.
        nameless: the names of images, categories and keypoints, and the sizes of images, may be
            missing, because metrics do not need them.
    """
    if (folder := cache.folder()) is not None:
        try:
            return _cached_table(file, by_url, nameless, folder)
        except OSError as error:
            _logger.warning(
                "%s: the index is built in a temporary folder, and again at the next start: %s "
                "(set %s to a folder with space)", file, str(error), cache.VARIABLE,
            )  # fmt: skip
    try:
        return _cached_table(file, by_url, nameless, cache.process_folder())
    except OSError as error:
        raise DataError(
            f"{file}: no space for the index, which is about as large as the file ({error}). Set "
            f"{cache.VARIABLE} to a folder with space"
        ) from error


def table_of(content: Mapping[str, Any], name: object, nameless: bool = False) -> AnnotationTable:
    """Return the table of the content of an annotation file in memory. Raises DataError.

    The table cannot be pickled. `name` is the name of the content in messages.
    """
    stream = tempfile.TemporaryFile()  # noqa: SIM115 - the table keeps it
    write_table(name, document_of(content, name), "", stream, nameless=nameless)
    return AnnotationTable(None, stream=stream)


def _cached_table(file: Path, by_url: bool, nameless: bool, folder: Path) -> AnnotationTable:
    """Open or build a table in a folder. Raises OSError if it cannot be written."""
    note_file = folder / f"{cache.key(file.absolute())}.note"
    try:
        stamp = cache.file_stamp(file)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error
    note = cache.read_note(note_file)
    known = stamp is not None and isinstance(note, dict) and note.get("stamp") == stamp
    content = str(note["hash"]) if known else content_hash(file)
    path = folder / f"{content}{'-by-url' * by_url}{'-nameless' * nameless}.index"
    table = _open_valid(path, content)
    if table is None:
        folder.mkdir(parents=True, exist_ok=True)
        with cache.exclusive_lock(path.with_suffix(".lock")):
            # Another process may have built it.
            table = _open_valid(path, content)
            if table is None:
                start = time.perf_counter()
                cache.delete_unused(folder)
                document = read_document(file)
                with atomic_open(path, "wb", unique=True) as stream:
                    write_table(file, document, content, stream, by_url, nameless)
                    settled = stamp is not None and cache.file_stamp(file) == stamp
                    if not settled and content_hash(file) != content:
                        raise DataError(f"{file}: the file changed while it was read; start again")
                seconds = time.perf_counter() - start
                _logger.info("%s: built its index in %.1f s", file, seconds)
                table = AnnotationTable(path)
    # The folder may belong to another user.
    with contextlib.suppress(OSError):
        os.utime(path)  # marks it as used
        if stamp is not None and not known:
            cache.write_note(note_file, {"stamp": stamp, "hash": content})
    return table


def _open_valid(path: Path, content: str) -> AnnotationTable | None:
    """Open a table; None if there is none with this content and version."""
    try:
        table = AnnotationTable(path)
    except (FileNotFoundError, DamagedTableError):
        return None
    return table if table.facts["hash"] == content else None


def content_hash(file: Path) -> str:
    """Return a hash of the content of a file. Raises DataError if it cannot be read."""
    digest = hashlib.blake2b(digest_size=20)
    try:
        with open_file(file) as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error
    return digest.hexdigest()


@without_gc()
def write_table(
    file: object,
    document: Document,
    content: str,
    stream: IO[bytes],
    by_url: bool = False,
    nameless: bool = False,
) -> None:
    """Read, judge and write the content of an annotation file with the hash `content`.

    The columns of the table, grouped by image; annotations without a valid image come last:

    - "images", "annotations", int64 [I, 2], [A, 2]: start and end of the texts.
    - "image_ids", int64 [I], and "sizes", int32 [I, 2].
    - "first", int64 [I + 1]: the first annotation of each image.
    - "positions", int64 [A]: position in the list of the file.
    - "flags", uint16 [A]: see `Flag`.
    - "ids", "category_ids", int64 [A].
    - "labeled", int16 [A]: the number of labeled keypoints.
    - "areas", float64 [A]: pixels, 0 if unknown.
    - "boxes", float64 [A, 4]: x, y, width, height; NaN if they cannot be used.

    Args:
        file: the name of the file in messages.
        document: its content.
        content: the hash of the content.
        stream: the file to write.
        by_url, nameless: see `open_table`.

    Raises:
        DataError: the content is not usable.
        OSError: the table cannot be written.
    """
    findings = Findings()
    texts = document.texts
    images = read_images(file, _rows(file, texts, "images"), by_url, nameless, findings)
    rows = [*_rows(file, texts, "categories")]
    categories, category_ids = read_categories(file, rows, nameless, findings)
    names = keypoint_names(sorted(categories, key=lambda row: row["id"]))
    if nameless and not names:
        parsed = (json.loads(bytes(text)) for text in texts["annotations"])
        points = (row.get("keypoints") for row in parsed if isinstance(row, dict))
        own = next((one for one in points if isinstance(one, list) and one), [])
        names = [str(number) for number in range(1, len(own) // 3 + 1)]
        categories = [{**row, "keypoints": names} for row in categories] if names else categories
    judge = Judge(file, images, categories, category_ids, len(names), findings, nameless)
    judged = np.zeros(len(texts["annotations"]), JUDGED)
    sizes = [_write_texts(stream, texts["images"])]
    parts = range(0, len(judged), _ENTRIES)
    for first in progress_bar(parts, f"reading the annotations of {file}", unit=" parts"):
        group = slice(first, first + _ENTRIES)
        written, judged[group] = judge.read(texts["annotations"][group], first)
        sizes.append(_write_texts(stream, written))
    judge.finish()
    lengths = np.concatenate(sizes)
    spans = np.stack([lengths.cumsum() - lengths, lengths.cumsum()], axis=1)
    of_images, of_annotations = np.split(spans, [len(texts["images"])])
    _check_ids(judged, texts["annotations"], findings)
    _report_repeats(judged, images, findings)
    used = {*np.unique(judged["category_id"][judged["image"] < len(images.ids)]).tolist()}
    order = np.argsort(judged["image"], kind="stable")
    stored = {"ids": "id", "category_ids": "category_id", "flags": "flags", "labeled": "labeled",
              "areas": "area", "boxes": "box"}  # fmt: skip
    columns: dict[str, np.ndarray] = {
        "image_ids": np.array(images.ids, np.int64),
        "sizes": np.array(images.sizes, np.int32),
        "images": of_images[images.positions],
        "first": np.searchsorted(judged["image"][order], np.arange(len(images.ids) + 1)),
        "annotations": of_annotations[order],
        "positions": order,
        **{name: judged[own][order] for name, own in stored.items()},
    }
    sections = {}
    for name, column in columns.items():
        sections[name] = stream.tell(), column.dtype.str, column.shape
        stream.write(np.ascontiguousarray(column).data)
    facts = {
        "version": VERSION,
        "hash": content,
        "by_url": by_url,
        "nameless": nameless,
        "content": {
            **document.members,
            "categories": drop_namesakes(file, categories, used, findings),
        },
        "folders": sorted(images.folders),
        "image_problems": images.problems,
        "unused_images": images.unused,
        "federated": images.federated,
        "findings": findings.to_json(),
        "examples": {str(int(flag)): text for flag, text in judge.examples.items()},
        "sections": sections,
    }
    text = json.dumps(facts).encode()
    stream.write(text + END.pack(len(text), VERSION))
    stream.flush()


def _rows(file: object, texts: dict[str, list[Any]], key: str) -> Iterator[Row]:
    bar = progress_bar(texts[key], f"reading the {key} of {file}", unit="")
    return (parse_row(file, key, n, text) for n, text in enumerate(bar))


def _write_texts(stream: IO[bytes], texts: list[Any]) -> np.ndarray:
    """Write texts without separators, and return their lengths."""
    stream.writelines(texts)
    return np.fromiter((memoryview(text).nbytes for text in texts), np.int64, len(texts))


def _check_ids(judged: np.ndarray, texts: Sequence[Any], findings: Findings) -> None:
    """Replace the ids of annotations by their positions if they are not different integers."""
    ids = np.sort(judged["id"])
    repeated = ids[1:][ids[1:] == ids[:-1]]
    if NO_ID in ids[:1] or len(repeated):
        value = NO_ID if NO_ID in ids[:1] else repeated[0]
        position = int((judged["id"] == value).argmax())
        findings.add(
            "ids of annotations that are not different integers",
            "All annotations are numbered from 1 in the order of the file.",
            annotation_name(json.loads(bytes(texts[position])), position),
            "file",
        )
        judged["id"] = np.arange(1, len(judged) + 1)


def _report_repeats(judged: np.ndarray, images: ImageTable, findings: Findings) -> None:
    """Report annotations with the image, category and box of another one, by a hash of these."""
    has_box = ~np.isnan(judged["box"]).any(1)
    known = np.flatnonzero(has_box & (judged["flags"] & Flag.REGION == 0))
    boxes = judged["box"][known] + 0.0  # there is one zero only
    keys = np.zeros(len(known), np.uint64)
    for values in (judged["image"][known], judged["category_id"][known], *boxes.T):
        keys = (keys ^ np.ascontiguousarray(values).view(np.uint64)) * _PRIME
        keys ^= keys >> np.uint64(29)
    order = np.argsort(keys, kind="stable")
    repeated = np.sort(known[order[1:][keys[order[1:]] == keys[order[:-1]]]])
    if len(repeated):
        effect = "All are trained and measured. `detlite check` lists them: delete the repeats."
        example = f"annotation {judged['id'][repeated[0]]}"
        owners = np.array(images.ids)[judged["image"][repeated]].tolist()
        findings.add(REPEATED, effect, example, images=owners)
