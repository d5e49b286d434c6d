"""A run of `detlite predict`, which the same command continues after any interruption.

    manifest.json     the command, and in the end the totals
    progress.jsonl    a line of JSON for each image: its entry with the number of objects, see
                      `prediction_files.writer`, and the size of each file of rows after it

An image is finished when its line is complete, which is written after its rows. So rows without a
line are removed, and a line without its rows does not count.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from glob import escape
from pathlib import Path
from typing import Any

from detlite.apps.prediction_files.row_file import PART
from detlite.apps.prediction_files.writer import OTHER_FILES, OUTPUTS, Entry, PredictionWriter
from detlite.config import ConfigError
from detlite.files.atomic_write import atomic_open, make_folder, open_to_append
from detlite.files.json_files import read_json
from detlite.files.reading import open_file

MANIFEST, PROGRESS = "manifest.json", "progress.jsonl"


@dataclass
class Totals:
    """Numbers of processed images and frames, unreadable images, objects and videos."""

    images: int = 0
    unreadable: int = 0
    objects: int = 0
    videos: int = 0

    def add(self, line: Entry) -> None:
        """Count a line of progress.jsonl."""
        is_problem = "problem" in line
        self.objects += line["objects"]
        self.unreadable += is_problem
        self.images += not is_problem
        self.videos += line["image"].get("frame") == 0

    def __str__(self) -> str:
        kind = "images and video frames" if self.videos else "images"
        return f"{self.images} {kind} done, {self.unreadable} unreadable, {self.objects} objects"


class ResumableRun:
    """A run, whose whole state is in its folder, which the caller locks.

    Attributes:
        totals: of the entries so far.
        is_done: True if the results are complete.
    """

    def __init__(
        self, writer: PredictionWriter, command: Mapping[str, Any], continues: bool = True
    ) -> None:
        """Start a run, or continue that of the same command.

        Args:
            writer: writes the results to its folder, which is that of the run.
            command: settings that the results depend on, as JSON values.
            continues: continue after the images of a run that was interrupted.

        Raises:
            ConfigError: the folder contains a run of another command, or other results.
        """
        self.folder, self._command, self._writer = writer.folder, command, writer
        make_folder(self.folder)
        done = _check_manifest(writer, command)
        self.is_done, self.totals = done is not None, done or Totals()
        self._streams = ExitStack()
        if self.is_done:
            return
        if not continues:
            remove_results(self.folder)
        _write_manifest(self.folder, {"command": command})
        writer.open()
        found = [file.size for file in writer.files]
        kept, sizes = 0, [0] * len(found)
        with suppress(TypeError, KeyError, ValueError):  # a line of another program
            for line, end in _read_progress(self.folder):
                if not all(0 <= x <= size for x, size in zip(line["sizes"], found, strict=True)):
                    break  # rows that were deleted since, or lost in a power failure
                self.totals.add(line)
                kept, sizes = end, [*map(int, line["sizes"])]
        for file, size in zip(writer.files, sizes, strict=True):
            self._streams.enter_context(file.stream)
            file.restart(size)
        self._progress = self._streams.enter_context(open_to_append(self.folder / PROGRESS))
        self._progress.truncate(kept)

    @property
    def finished(self) -> int:
        """The number of images that are finished or cannot be read."""
        return self.totals.images + self.totals.unreadable

    def add(self, entry: Entry) -> None:
        """Write an entry, so that it survives the end of the process."""
        if "problem" not in entry:
            self._writer.add(entry, self.totals.objects)
        count, sizes = len(entry.get("objects", ())), [file.size for file in self._writer.files]
        line = {**entry, "objects": count, "sizes": sizes}
        self._progress.write(json.dumps(line).encode() + b"\n")
        self._progress.flush()
        self.totals.add(line)

    def finish(self) -> None:
        """Complete the results."""
        os.fsync(self._progress.fileno())
        lines = (line for line, _ in _read_progress(self.folder))
        self._writer.end(line["image"] for line in lines if "problem" not in line)
        _write_manifest(self.folder, {"command": self._command, "done": asdict(self.totals)})
        self.is_done = True

    def close(self) -> None:
        """Close the files."""
        self._streams.close()


def remove_results(folder: Path) -> None:
    """Remove the files of a run, except drawn images and label images."""
    names = [*OUTPUTS, *(name + PART for name in OUTPUTS), *OTHER_FILES, MANIFEST]
    for line, _ in _read_progress(folder):
        if copy := line["image"].get("copy"):
            stem = escape(Path(str(copy)).stem)
            names += [f"images/{stem}.*", f"labels/{stem}.txt"]
    for name in (*names, PROGRESS):
        for file in folder.glob(name):
            file.unlink()


def _read_progress(folder: Path) -> Iterator[tuple[Entry, int]]:
    """Yield each line of progress.jsonl and its end in bytes, up to the first incomplete one."""
    end = 0
    if not (folder / PROGRESS).exists():
        return
    with open_file(folder / PROGRESS) as stream, suppress(ValueError, TypeError, KeyError):
        for text in stream:
            line = json.loads(text)
            if not (text.endswith(b"\n") and isinstance(line["image"], dict)):
                return
            end += len(text)
            yield line, end


def _check_manifest(writer: PredictionWriter, command: Mapping[str, Any]) -> Totals | None:
    """Return the totals of a complete run of the same command; write the manifest of a new one."""
    folder = writer.folder
    try:
        content = read_json(folder / MANIFEST)
        existing = dict(content["command"])
        done = Totals(**content["done"]) if "done" in content else None
    except (ValueError, TypeError, KeyError) as error:
        folders = ["images", "labels"] if writer.copies_images else []
        for name in (MANIFEST, *OUTPUTS, *folders):
            if (folder / name).exists():
                raise ConfigError(
                    f"{folder / name} exists, but not as part of a run that can be continued: "
                    "choose another folder, or add --overwrite"
                ) from error
        return None
    for name, value in command.items():
        if existing.get(name) != value:
            raise ConfigError(
                f"{folder} contains a run with other {name}: {existing.get(name)}, not {value}. "
                "Choose another folder, or start again with --overwrite"
            )
    return done if all((folder / name).exists() for name, _ in writer.outputs) else None


def _write_manifest(folder: Path, content: Entry) -> None:
    with atomic_open(folder / MANIFEST) as stream:
        json.dump(content, stream, indent=1)
