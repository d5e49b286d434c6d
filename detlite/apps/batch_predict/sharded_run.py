"""A run over many images, divided into shards that any number of processes finish one by one.

    manifest.json                    the command, and in the end the totals
    shards/000000.journal            a line of JSON for each finished image of a shard
    shards/000000.json               a finished shard: its images, and the unreadable ones
    detections/part-000000.parquet   its detections, in place of the journal

Shard k contains the images from index k * shard_size on. A process locks a shard, and the system
releases the lock when the process dies. The next process to lock the shard continues after the last
complete line of its journal. Hence processes need no communication, each image is in the results
exactly once, and a run can be continued with any number of processes. The last process writes the
results of all journals to one file, except for Parquet, which is read by the folder. The file
system of the folder must support flock.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from filelock import FileLock, Timeout

from detlite.config import ConfigError
from detlite.files.atomic_write import atomic_open, make_folder
from detlite.files.json_files import read_json

from .result_files import (
    SUFFIXES,
    Entry,
    Journal,
    category_names,
    read_journal,
    write_detections,
    write_results,
)

SHARD_SIZE = 1000  # images
MANIFEST = "manifest.json"
RESULTS = ("images.json", "summary.csv", *(f"results{suffix}" for suffix in SUFFIXES.values()))
_SHARDS, _DETECTIONS, _LOCK = "shards", "detections", "shards/.lock"
_SHARDS_PER_PROCESS = 8  # minimum for several processes, so that they finish together


@dataclass(frozen=True)
class Totals:
    """Numbers of processed images, unreadable images and detected objects."""

    images: int
    unreadable: int
    objects: int


@dataclass(frozen=True)
class ShardedRun:
    """A run, whose whole state is in its folder.

    Attributes:
        images: paths and URLs; the id of an image is its index + 1.
        shard_size: number of images in a shard.
        format: format of the detections, a key of `result_files.SUFFIXES`.
        categories: {"id", "name"} of the categories.
    """

    folder: Path
    images: Sequence[str]
    shard_size: int
    format: str
    categories: Sequence[Entry]

    @property
    def shard_count(self) -> int:
        return -(-len(self.images) // self.shard_size)

    def indices(self, shard: int) -> range:
        """Return the indices of a shard's images."""
        start = shard * self.shard_size
        return range(start, min(start + self.shard_size, len(self.images)))

    def is_finished(self, shard: int) -> bool:
        """Return True if the detections of a shard are in their file or in the joined one."""
        has_detections = self._part(shard).exists() or self._result.exists()
        return self._file(shard, ".json").exists() and has_detections

    def finished_images(self) -> int:
        """Return the number of images in finished shards, from a listing of the folder."""
        files = (self.folder / _SHARDS).glob("[0-9]*.json")
        return sum(len(self.indices(int(file.stem))) for file in files)

    def unfinished_shards(self, rank: int = 0, world_size: int = 1) -> Iterator[int]:
        """Yield the shards that no process has finished or locked; each is locked until the next.

        Every `world_size`-th shard belongs to `rank`. The shards of other ranks follow, which may
        have died.
        """
        for shard in sorted(range(self.shard_count), key=lambda n: n % world_size != rank):
            if self.is_finished(shard):
                continue
            file = self._file(shard, ".lock")
            with suppress(Timeout), FileLock(file, timeout=0):
                if not self.is_finished(shard):
                    yield shard
            if self.is_finished(shard):
                file.unlink(missing_ok=True)

    def journal(self, shard: int) -> Journal:
        """Open the journal of a locked shard, which is then unfinished."""
        self._file(shard, ".json").unlink(missing_ok=True)  # its detections were deleted
        return Journal(self._file(shard, ".journal"))

    def finish(self, shard: int) -> None:
        """Write the detections and the summary of a shard with a complete journal."""
        journal, part = self._file(shard, ".journal"), self._part(shard)
        if part != journal:
            make_folder(part.parent)
            names = category_names(self.categories)
            write_detections(self.format, part, read_journal(journal), names)
        images, unreadable, objects = [], [], 0
        for entry in read_journal(journal):
            if "problem" in entry:
                unreadable.append(entry["image"] | {"problem": entry["problem"]})
            else:
                images.append(entry["image"])
                objects += len(entry["objects"])
        summary = {"detections": part.name, "objects": objects, "images": images,
                   "unreadable": unreadable}  # fmt: skip
        _write_json(self._file(shard, ".json"), summary)
        if part != journal:
            journal.unlink()

    def complete(self) -> Totals | None:
        """Join the shards if the format has a single file; None if some are not finished.

        Every process may call this, also repeatedly.
        """
        shards = range(self.shard_count)
        if not all(map(self.is_finished, shards)):
            return None
        with FileLock(self.folder / _LOCK):
            if self.format != "parquet":
                journals = [self._part(shard) for shard in shards]
                if not self._result.exists():
                    write_results(self.folder, self.format, journals, self.categories)
                for journal in journals:
                    journal.unlink(missing_ok=True)
            summaries = (read_json(self._file(shard, ".json")) for shard in shards)
            counts = [(len(x["images"]), len(x["unreadable"]), x["objects"]) for x in summaries]
            totals = Totals(*map(sum, zip(*counts, strict=True)))
            manifest = self.folder / MANIFEST
            _write_json(manifest, read_json(manifest) | {"done": vars(totals)})
        return totals

    @property
    def _result(self) -> Path:
        return self.folder / f"results{SUFFIXES[self.format]}"

    def _file(self, shard: int, suffix: str) -> Path:
        return self.folder / _SHARDS / f"{shard:06d}{suffix}"

    def _part(self, shard: int) -> Path:
        """Return the file with the detections of a finished shard."""
        if self.format == "parquet":
            return self.folder / _DETECTIONS / f"part-{shard:06d}.parquet"
        return self._file(shard, ".journal")


def open_run(
    folder: Path,
    command: Mapping[str, object],
    images: Sequence[str],
    format: str,
    categories: Sequence[Entry],
    shard_size: int | None = None,
    world_size: int = 1,
    overwrite: bool = False,
) -> ShardedRun:
    """Start a run in a folder, or continue the run of the same command.

    Args:
        command: other settings that the results depend on, as JSON values.
        images, format, categories: see `ShardedRun`.
        shard_size: None: the size of the existing run, or at most SHARD_SIZE for a new one.
        world_size: number of processes that start it together.
        overwrite: remove the files of an existing run first.

    Raises:
        ConfigError: the folder contains a run of another command, or other results.
    """
    digest = sha256("\0".join(images).encode(errors="surrogatepass")).hexdigest()[:16]
    described = f"{len(images)} (SHA-256 of their names {digest})"
    command = {**command, "images": described, "format": format}
    make_folder(folder / _SHARDS)
    manifest = folder / MANIFEST
    with FileLock(folder / _LOCK):
        if overwrite:
            remove_results(folder)
        if manifest.exists():
            shard_size = _check_manifest(manifest, command, shard_size)
        else:
            for name in RESULTS:
                if (folder / name).exists():
                    raise ConfigError(
                        f"{folder / name} exists, but not as part of a run that can be continued: "
                        "choose another folder, or add --overwrite"
                    )
            if shard_size is None:
                shard_size = SHARD_SIZE
                if world_size > 1:
                    min_shards = world_size * _SHARDS_PER_PROCESS
                    shard_size = min(SHARD_SIZE, -(-len(images) // min_shards))
            content = {"command": command, "shard": shard_size, "categories": list(categories)}
            _write_json(manifest, content)
    return ShardedRun(folder, images, shard_size, format, categories)


def remove_results(folder: Path) -> None:
    """Remove the files of a run, except drawn images and the lock, which may be held."""
    for name in (MANIFEST, *RESULTS):
        (folder / name).unlink(missing_ok=True)
    for file in (folder / _DETECTIONS).glob("part-[0-9]*"):
        file.unlink()
    with suppress(OSError):  # it is missing, or contains something else
        (folder / _DETECTIONS).rmdir()
    for suffix in (".json", ".json.tmp", ".journal", ".lock"):
        for file in (folder / _SHARDS).glob(f"[0-9]*{suffix}"):
            file.unlink()


def _check_manifest(manifest: Path, command: Mapping[str, object], shard_size: int | None) -> int:
    """Return the shard size of the existing run if its command is the same."""
    try:
        content = read_json(manifest)
        existing, existing_size = dict(content["command"]), int(content["shard"])
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{manifest}: is not the manifest of a run: choose another folder, or add --overwrite"
        ) from error
    existing["shard size"] = existing_size
    for name, value in {**command, "shard size": shard_size or existing_size}.items():
        if existing.get(name) != value:
            raise ConfigError(
                f"{manifest.parent} contains a run with other {name}: {existing.get(name)}, not "
                f"{value}. Choose another folder, or start again with --overwrite"
            )
    return existing_size


def _write_json(file: Path, content: Entry) -> None:
    with atomic_open(file) as stream:
        json.dump(content, stream, indent=1)
