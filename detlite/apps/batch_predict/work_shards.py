"""A run over many pictures, cut into shards that any number of processes finish one by one.

    manifest.json                    the command; in the end, what came of it
    shards/000000.journal            a shard at work: a line of JSON for each picture that is done
    shards/000000.json               a finished shard: its pictures, and those that are unreadable
    detections/part-000000.parquet   what was found in it

Shard k holds the pictures from place k * size on. A process takes a shard by a lock that the system
releases when the process dies; the next one to take it goes on after the last whole line of its
journal. So processes tell each other nothing, each picture is in the result exactly once, and a run
goes on with more of them or fewer. The folder's file system must know flock.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from detlite.atomic_write import atomic_open

from .journal import Journal, open_journal, read_journal
from .result_files import (
    JOINED,
    SUFFIXES,
    Entry,
    category_names,
    join,
    write_detections,
    write_images,
)

MANIFEST = "manifest.json"
SHARDS, DETECTIONS, LOCK = "shards", "detections", "shards/.lock"
RESULTS = ("images.json", *(f"results{suffix}" for suffix in SUFFIXES.values()))


@dataclass(frozen=True)
class Totals:
    """Of a run: pictures that were read, pictures that were not, and what was found in them."""

    pictures: int
    unreadable: int
    objects: int


@dataclass(frozen=True)
class Run:
    """The state of a run, which is all in its folder.

    Attributes:
        pictures: paths and addresses; the id of one is its place in this list and 1.
        size: pictures of a shard.
        form: of detections, one of `formats.SUFFIXES`.
        categories: {"id", "name"} of what is detected.
    """

    folder: Path
    pictures: Sequence[str]
    size: int
    form: str
    categories: Sequence[Entry]

    @property
    def count(self) -> int:
        """Shards."""
        return -(-len(self.pictures) // self.size)

    def places(self, shard: int) -> range:
        """Places in `pictures`."""
        return range(shard * self.size, min((shard + 1) * self.size, len(self.pictures)))

    def finished(self, shard: int) -> bool:
        """Whether a shard is done, and what was found is there or in the joined file."""
        return self._note(shard).exists() and (self._part(shard).exists() or self._result.exists())

    def done(self) -> int:
        """Pictures of finished shards, by a listing of the folder."""
        notes = (Path(name) for name in os.listdir(self.folder / SHARDS))
        return sum(len(self.places(int(n.stem))) for n in notes if n.suffix == ".json")

    def shards(self, rank: int = 0, world_size: int = 1) -> Iterator[int]:
        """The shards that nobody has finished or is at, each locked until the next is asked for.

        Those of the rank come first: each `world_size`-th. Those of others follow, which they may
        have left unfinished.
        """
        for shard in sorted(range(self.count), key=lambda one: one % world_size != rank):
            if self.finished(shard):
                continue
            lock = FileLock(self._file(shard, ".lock"))
            try:
                lock.acquire(blocking=False)
            except Timeout:
                continue
            try:
                if not self.finished(shard):
                    yield shard
            finally:
                lock.release()
                if self.finished(shard):
                    Path(lock.lock_file).unlink(missing_ok=True)

    def journal(self, shard: int) -> AbstractContextManager[Journal]:
        """The journal of a shard that is locked."""
        return open_journal(self._file(shard, ".journal"))

    def finish(self, shard: int) -> None:
        """Writes the detections of a shard whose journal is complete, and that it is finished."""
        journal = self._file(shard, ".journal")
        self._part(shard).parent.mkdir(exist_ok=True)
        names = category_names(self.categories)
        write_detections(self.form, self._part(shard), read_journal(journal), names)
        note: Entry = {"detections": self._part(shard).name, "objects": 0}
        note |= {"images": [], "unreadable": []}
        for picture in read_journal(journal):
            if "problem" in picture:
                note["unreadable"].append(picture["image"] | {"problem": picture["problem"]})
            else:
                note["images"].append(picture["image"])
                note["objects"] += len(picture["objects"])
        write_json(self._note(shard), note)
        journal.unlink()

    def complete(self) -> Totals | None:
        """Joins the shards where the format is a single file; None while some are not finished.

        Any process may call it, again too.
        """
        if not all(map(self.finished, range(self.count))):
            return None
        with FileLock(self.folder / LOCK):
            if self.form in JOINED:
                if not self._result.exists():
                    images = (image for note in self._notes() for image in note["images"])
                    write_images(self.folder / "images.json", images, self.categories)
                    parts = [self._part(shard) for shard in range(self.count)]
                    join(self.form, parts, self._result)
                remove_parts(self.folder)
            sums = [(len(n["images"]), len(n["unreadable"]), n["objects"]) for n in self._notes()]
            totals = Totals(*map(sum, zip(*sums, strict=True)))
            manifest = self.folder / MANIFEST
            write_json(manifest, json.loads(manifest.read_text()) | {"done": vars(totals)})
        return totals

    @property
    def _result(self) -> Path:
        return self.folder / f"results{SUFFIXES[self.form]}"

    def _notes(self) -> Iterator[Entry]:
        return (json.loads(self._note(shard).read_text()) for shard in range(self.count))

    def _note(self, shard: int) -> Path:
        return self._file(shard, ".json")

    def _file(self, shard: int, suffix: str) -> Path:
        return self.folder / SHARDS / f"{shard:06d}{suffix}"

    def _part(self, shard: int) -> Path:
        return self.folder / DETECTIONS / f"part-{shard:06d}{SUFFIXES[self.form]}"


def remove_parts(folder: Path) -> None:
    """Removes the detections of a run's shards, and their folder if nothing else is in it."""
    for suffix in SUFFIXES.values():
        for ending in (suffix, f"{suffix}.tmp"):  # which a process that was killed leaves
            for part in (folder / DETECTIONS).glob(f"part-[0-9]*{ending}"):
                part.unlink(missing_ok=True)
    with suppress(OSError):  # it is not there, or holds something else
        (folder / DETECTIONS).rmdir()


def write_json(file: Path, content: Entry) -> None:
    """Writes a JSON file aside and renames it."""
    with atomic_open(file) as stream:
        json.dump(content, stream, indent=1)
