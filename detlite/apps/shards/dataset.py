"""Datasets of tar files in the WebDataset format.

The tar headers and json files of each shard are read once and cached as the index of the shard. The
indexes of all shards are joined to an annotation file in COCO's format that also contains the
position of each image, so everything else works as for other datasets.
"""

import contextlib
import json
import logging
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from detlite.data.datasets.catalog import DATASETS, Entry, check_fields
from detlite.data.locations import Location, local_copy, location_id, parse_location
from detlite.data.remote.filesystem import file_version
from detlite.data.remote.remote_path import RemotePath
from detlite.files import cache
from detlite.files.atomic_write import atomic_open
from detlite.files.errors import DataError
from detlite.files.json_files import read_json
from detlite.files.retry import without_secrets

from .entries import read_entries
from .tar_files import Shard, ShardFolder

_FORMAT = 1  # increase it with every change of the files that this module writes
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MAX_SHARDS = 1_000_000
_MAX_REPORTED = 5  # stored problems; the others are counted
_logger = logging.getLogger(__name__)


@DATASETS.register("webdataset")
def webdataset_files(entry: Entry, root: Location) -> tuple[Path, ShardFolder]:
    """`{name, type: webdataset, shards: "train-{000..099}.tar", categories: file.json}`.

    `shards` and `categories` are URLs or paths relative to `root`. `categories` is a json file with
    the content `{"categories": [...]}`. Each shard is read once, and again when it changes.
    """
    check_fields(entry, {"shards": str, "categories": str})
    name = without_secrets(entry["shards"])
    files = [parse_location(text, root) for text in expand_range(entry["shards"])]
    with ThreadPoolExecutor(16) as pool:
        shards = list(pool.map(_shard, files))
    categories = _read_categories(parse_location(entry["categories"], root))
    keys = [cache.key("shard", location_id(shard.file), shard.version, _FORMAT) for shard in shards]
    try:
        folder = cache.existing_folder()
        indexes = [folder / f"{key}.shard" for key in keys]
        file = folder / f"{cache.key(*keys, json.dumps(categories))}.coco"
        with cache.exclusive_lock(file.with_suffix(".lock")):
            if not file.is_file():
                _write_annotations(name, file, shards, indexes, categories)
        for path in (file, *indexes):
            with contextlib.suppress(FileNotFoundError):  # only the joined file may be left
                cache.mark_used(path)
    except OSError as error:
        raise DataError(
            f"{name}: no space for the index of the shards ({error}). Set {cache.VARIABLE} to a "
            "folder with space"
        ) from error
    return file, ShardFolder(name, tuple(shards))


def expand_range(text: str) -> list[str]:
    """Expand `a-{08..10}.tar` to `a-08.tar`, `a-09.tar`, `a-10.tar`. Raises DataError."""
    match = _RANGE.search(text)
    if match is None:
        return [text]
    first, last = int(match[1]), int(match[2])
    if not 0 <= last - first < _MAX_SHARDS:
        raise DataError(f"{text}: {match[0]} must be a range of 1 to {_MAX_SHARDS} numbers")
    return [
        f"{text[: match.start()]}{number:0{len(match[1])}}{rest}"
        for number in range(first, last + 1)
        for rest in expand_range(text[match.end() :])
    ]


def _shard(file: Location) -> Shard:
    try:
        if isinstance(file, RemotePath):
            current = file_version(file.url)
            if current.size is None or current.version is None:
                raise DataError(f"{file}: the server reports no size or no version (ETag)")
            return Shard(file, current.size, current.version)
        status = file.stat()
        version = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"
        return Shard(file, status.st_size, version)
    except FileNotFoundError as error:
        raise DataError(f"{file}: the shard does not exist") from error
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error


def _read_categories(file: Location) -> list[Any]:
    with local_copy(file) as path:
        content = read_json(path)
    categories = content.get("categories") if isinstance(content, dict) else None
    if not isinstance(categories, list):
        raise DataError(f"{file}: must be an object with a list 'categories'")
    return categories


def _write_annotations(
    name: str, file: Path, shards: Sequence[Shard], indexes: Sequence[Path], categories: list[Any]
) -> None:
    """Write an annotation file in COCO's format from the indexes of the shards; write missing ones.

    The file has two more members: `problems` (their count and the first of them), and `shards` (the
    number of images in each shard).
    """
    start = time.perf_counter()
    with ThreadPoolExecutor(8) as pool:
        for number, _ in enumerate(pool.map(_write_index, shards, indexes), start=1):
            _logger.info("indexed shard %d of %d", number, len(shards))
    counts = [0] * len(shards)
    problems: list[str] = []
    problem_count = annotations = 0
    with atomic_open(file, unique=True) as stream:
        stream.write('{"images": [')
        for number, images, entry in _entries(indexes):
            shard = shards[number].file.name
            if "problem" in entry:
                problem_count += 1
                if len(problems) < _MAX_REPORTED:
                    problems.append(f"{shard}: {entry['problem']}")
                continue
            counts[number] += 1
            sample, file_name = entry.pop("json"), f"{shard}/{entry.pop('name')}"
            image = {
                "id": sample.get("image_id", images), "file_name": file_name,
                "height": sample["height"], "width": sample["width"], "shard": number, **entry,
            }  # fmt: skip
            stream.write(",\n" * (images > 1) + json.dumps(image))
        if not any(counts):
            first = problems[0] if problems else f"{len(shards)} shards without an entry"
            raise DataError(f"{name}: there is no image in the shards ({first})")
        stream.write('],\n"annotations": [')
        for _, images, entry in _entries(indexes):
            sample = entry.get("json", {"annotations": ()})
            for annotation in sample["annotations"]:
                annotations += 1
                image_id = sample.get("image_id", images)
                row = {"id": annotations, **annotation, "image_id": image_id}
                stream.write(",\n" * (annotations > 1) + json.dumps(row))
        rest = {"problems": {"count": problem_count, "first": problems}, "shards": counts}
        stream.write("],\n" + json.dumps({**rest, "categories": categories})[1:])
    seconds = time.perf_counter() - start
    _logger.info("indexed %d images in %d shards in %.1f s", sum(counts), len(shards), seconds)


def _entries(indexes: Sequence[Path]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield the number of the shard, the number of images so far, and each entry of the indexes."""
    images = 0
    for number, index in enumerate(indexes):
        with index.open() as lines:
            for entry in map(json.loads, lines):
                images += "problem" not in entry
                yield number, images, entry


def _write_index(shard: Shard, index: Path) -> None:
    """Write the index of a shard, one line per entry, unless it exists."""
    with cache.exclusive_lock(index.with_suffix(".lock")):
        if index.is_file():
            return
        with atomic_open(index, unique=True) as stream:
            stream.writelines(json.dumps(entry) + "\n" for entry in read_entries(shard))
