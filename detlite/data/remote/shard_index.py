"""Tar files in WebDataset's form, as a data set in COCO's form.

The headers and json files of each shard are read once, and kept as its index. Those of all together
make an annotation file, with the place of each picture, so that all else is as with other sets.
"""

from __future__ import annotations

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
from detlite.data.errors import DataError
from detlite.data.index.cache import appearing, identity, locked
from detlite.data.index.coco_checks import MOST_SHOWN

from .download import without_query
from .fetching import describe
from .paths import Location, Remote, address, keep, kept_folder, local_copy, place
from .shard_entries import read_entries
from .shards import Shard, ShardFolder

_FORM = 1  # raise it with any change of what is written here
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MOST_SHARDS = 1_000_000
_logger = logging.getLogger(__name__)


@DATASETS.register("webdataset")
def shard_files(entry: Entry, root: Location) -> tuple[Path, ShardFolder]:
    """`{name, type: webdataset, shards: "train-{000..099}.tar", categories: file.json}`.

    Each shard is read once, and its index is kept as long as it does not change. Both may be URLs,
    or relative to `root`; `categories` is a json object with a list of that name.
    """
    check_fields(entry, {"shards": str, "categories": str})
    name = without_query(entry["shards"])
    files = [place(one, root) for one in expand_range(entry["shards"])]
    with ThreadPoolExecutor(16) as pool:
        shards = list(pool.map(_shard, files))
    categories = _categories(place(entry["categories"], root))
    parts = [identity("shard", address(one.file), one.version, _FORM) for one in shards]
    try:
        folder = kept_folder()
        indexes = [folder / f"{part}.shard" for part in parts]
        file = folder / f"{identity(*parts, json.dumps(categories))}.coco"
        with locked(file.with_suffix(".lock")):
            if not file.is_file():
                _make(name, file, shards, indexes, categories)
        for path in (file, *indexes):
            with contextlib.suppress(FileNotFoundError):  # of some only the whole may be left
                keep(path)
    except OSError as error:
        raise DataError(
            f"{name}: there is no room for the index ({error}): set DETLITE_CACHE to a "
            "folder with room"
        ) from error
    return file, ShardFolder(name, tuple(shards))


def expand_range(text: str) -> list[str]:
    """`a-{08..10}.tar` as `a-08.tar`, `a-09.tar` and `a-10.tar`; several ranges: all of them.

    Raises:
        DataError: a range is empty, or too long.
    """
    found = _RANGE.search(text)
    if found is None:
        return [text]
    first, last = int(found[1]), int(found[2])
    if not 0 <= last - first < _MOST_SHARDS:
        raise DataError(f"{text}: {found[0]} is no range of at most {_MOST_SHARDS} numbers")
    return [
        f"{text[: found.start()]}{number:0{len(found[1])}}{rest}"
        for number in range(first, last + 1)
        for rest in expand_range(text[found.end() :])
    ]


def _shard(file: Location) -> Shard:
    try:
        if isinstance(file, Remote):
            known = describe(file.url)
            if known.size is None or known.version is None:
                raise DataError(f"{file}: the server tells no size or no version (ETag) of it")
            return Shard(file, known.size, known.version)
        status = file.stat()
        version = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"
        return Shard(file, status.st_size, version)
    except FileNotFoundError as error:
        raise DataError(f"{file}: there is no such shard") from error
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error


def _categories(file: Location) -> list[Any]:
    with local_copy(file) as path:
        try:
            found = json.loads(path.read_bytes())
        except OSError as error:
            raise DataError(f"{file}: cannot be read ({error.strerror})") from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{file}: is not JSON: {error}") from error
    categories = found.get("categories") if isinstance(found, dict) else None
    if not isinstance(categories, list):
        raise DataError(f"{file}: holds no object with a list of 'categories'")
    return categories


def _make(
    name: str, file: Path, shards: Sequence[Shard], parts: Sequence[Path], categories: list[Any]
) -> None:
    """Writes an annotation file in COCO's form, of the indexes of shards.

    `problems` (how many, and the first of them) and `shards` (how many images of each) are told in
    members of their own.
    """
    start = time.perf_counter()
    with ThreadPoolExecutor(8) as pool:
        for number, _ in enumerate(pool.map(_index, shards, parts), start=1):
            _logger.info("shard %d of %d is indexed", number, len(shards))
    counts = [0] * len(shards)
    problems: list[str] = []
    bad = annotations = images = 0
    with appearing(file) as opened:
        opened.write(b'{"images": [')
        for number, row in _entries(parts):
            if "problem" in row:
                bad += 1
                if len(problems) < MOST_SHOWN:
                    problems.append(f"{shards[number].file.name}: {row['problem']}")
                continue
            counts[number] += 1
            images += 1
            sample = row.pop("json")
            image = {
                "id": sample.get("image_id", images),
                "file_name": f"{shards[number].file.name}/{row.pop('name')}",
                **{key: sample[key] for key in ("height", "width")},
                "shard": number,
                **row,
            }
            opened.write(b",\n" * (images > 1) + json.dumps(image).encode())
        if not images:
            first = problems[0] if problems else f"{len(shards)} shards without an entry"
            raise DataError(f"{name}: holds no image ({first})")
        opened.write(b'],\n"annotations": [')
        images = 0
        for _, row in _entries(parts):
            if "problem" in row:
                continue
            images += 1
            for annotation in row["json"]["annotations"]:
                annotations += 1
                known = {"id": annotations, **annotation}
                known["image_id"] = row["json"].get("image_id", images)
                opened.write(b",\n" * (annotations > 1) + json.dumps(known).encode())
        rest = {"problems": {"count": bad, "first": problems}, "shards": counts}
        opened.write(b"],\n" + json.dumps({**rest, "categories": categories}).encode()[1:])
    _logger.info(
        "indexed %d images in %d shards in %.1f s",
        images, len(shards), time.perf_counter() - start,
    )  # fmt: skip


def _entries(parts: Sequence[Path]) -> Iterator[tuple[int, dict[str, Any]]]:
    """What the indexes of shards hold, and of which shard it is."""
    for number, part in enumerate(parts):
        with part.open() as lines:
            for line in lines:
                yield number, json.loads(line)


def _index(shard: Shard, part: Path) -> None:
    """Writes the index of a shard unless it is there: a line for each entry."""
    with locked(part.with_suffix(".lock")):
        if part.is_file():
            return
        with appearing(part) as opened:
            for row in read_entries(shard):
                opened.write(json.dumps(row).encode() + b"\n")
