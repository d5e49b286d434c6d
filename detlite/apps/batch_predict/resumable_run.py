"""A run of `detlite predict`, which the same command continues after any interruption.

    manifest.json     the command, and in the end the totals
    progress.jsonl    a line of JSON for each image that is finished or cannot be read
    <name>.partial    a file of results until the run is complete

A line has the image, its number of objects or the problem, and the lengths of the partial files
after it. A run that continues cuts them there, so each image is in the results exactly once, and
results are only written once.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from glob import escape
from pathlib import Path
from typing import Any

from detlite.apps.prediction_files.writer import (
    OTHER_FILES,
    OUTPUTS,
    Entry,
    ModelInfo,
    PredictionWriter,
    partial_file,
)
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

    def add(self, line: Mapping[str, Any]) -> None:
        """Count a line of progress.jsonl."""
        self.unreadable += "problem" in line
        self.images += "problem" not in line
        self.objects += int(line.get("objects", 0))
        self.videos += line["image"].get("frame") == 0

    def __str__(self) -> str:
        kind = "images and video frames" if self.videos else "images"
        done = f"{self.images} {kind} done"
        return f"{done}, {self.unreadable} unreadable, {self.objects} objects"


class ResumableRun:
    """A run, whose whole state is in its folder, which the caller locks; a context manager.

    Attributes:
        totals: of the entries so far.
        is_done: True if the results are complete.
    """

    def __init__(
        self,
        folder: Path,
        command: Mapping[str, Any],
        kind: type[PredictionWriter],
        model: ModelInfo,
        continues: bool = True,
    ) -> None:
        """Start a run, or continue that of the same command.

        Args:
            command: settings that the results depend on, as JSON values.
            kind: writes the entries.
            model: what predicts them.
            continues: continue after the images of a run that was interrupted.

        Raises:
            ConfigError: the folder contains a run of another command, or other results.
        """
        self.folder, self.totals, self._kind, self._command = folder, Totals(), kind, command
        make_folder(folder)
        done = _check_manifest(folder, command, kind)
        self.is_done = done is not None
        if done is not None:
            self.totals = done
            kind.publish(folder)  # unless that was interrupted, the files have their names
            return
        positions = self._read_progress(continues)
        self._pending: list[Entry] = []
        self._progress = open_to_append(folder / PROGRESS)
        self._writer = kind(folder, model, positions, self.totals.objects)

    @property
    def finished(self) -> int:
        """The number of images that are finished or cannot be read."""
        return self.totals.images + self.totals.unreadable

    def add(self, entry: Entry) -> None:
        """Write an entry."""
        line: Entry = {key: entry[key] for key in ("image", "problem") if key in entry}
        if "problem" not in entry:
            self._writer.write(entry)
            line["objects"] = len(entry["objects"])
        self.totals.add(line)
        self._pending.append(line)
        self._write_progress()

    def _write_progress(self) -> None:
        """Write the lines of entries that are on the disk."""
        if (positions := self._writer.positions) is not None:
            for line in self._pending:
                self._progress.write(json.dumps(line | {"positions": positions}).encode() + b"\n")
            self._progress.flush()
            self._pending.clear()

    def finish(self) -> None:
        """Complete the results."""
        self._writer.flush()
        self._write_progress()
        lines = (line for line, _ in _read_lines(self.folder))
        self._writer.finish(line["image"] for line in lines if "problem" not in line)
        self._writer.close()
        content = {"command": self._command, "done": asdict(self.totals)}
        _write_json(self.folder / MANIFEST, content)
        self._kind.publish(self.folder)
        self.is_done = True

    def __enter__(self) -> "ResumableRun":
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_done:
            return
        if self._pending:
            self._writer.flush()
            self._write_progress()
        self._writer.close()

    def _read_progress(self, continues: bool) -> list[int]:
        """Read the state after the last image that is on the disk, and drop the rest.

        Returns:
            The positions of the writer; empty if nothing is finished.
        """
        files = [partial_file(self.folder / name) for name in self._kind.outputs]
        sizes = [file.stat().st_size if file.exists() else 0 for file in files]
        kept, positions = 0, list[int]()
        with suppress(ValueError, TypeError, KeyError):  # a line of another program
            for line, end in _read_lines(self.folder) if continues else ():
                lengths = [int(length) for length in line["positions"]]
                if any(length > size for length, size in zip(lengths, sizes, strict=False)):
                    break  # the line survived a power failure, but not the results
                self.totals.add(line)
                kept, positions = end, lengths
        with open_to_append(self.folder / PROGRESS) as stream:
            stream.truncate(kept)
        return positions


def remove_results(folder: Path) -> None:
    """Remove the files of a run, except drawn images and label images."""
    images = [line["image"] for line, _ in _read_lines(folder)]
    names = [*OUTPUTS, *map(partial_file, OUTPUTS), *OTHER_FILES, MANIFEST, PROGRESS]
    for image in images:
        if copy := image.get("copy"):
            stem = escape(Path(str(copy)).stem)
            names += [f"images/{stem}.*", f"labels/{stem}.txt"]
    for name in names:
        for file in folder.glob(str(name)):
            file.unlink()


def _read_lines(folder: Path) -> Iterator[tuple[Entry, int]]:
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


def _check_manifest(
    folder: Path, command: Mapping[str, Any], kind: type[PredictionWriter]
) -> Totals | None:
    """Return the totals of a complete run of the same command; write the manifest of a new one."""
    manifest = folder / MANIFEST
    if not manifest.exists():
        folders = ["images", "labels"] if kind.copies_images else []
        for name in (*OUTPUTS, "images.json", *folders):
            if (folder / name).exists():
                raise ConfigError(
                    f"{folder / name} exists, but not as part of a run that can be continued: "
                    "choose another folder, or add --overwrite"
                )
        _write_json(manifest, {"command": command})
        return None
    try:
        content = read_json(manifest)
        existing = dict(content["command"])
        done = Totals(**content["done"]) if "done" in content else None
        for file in (folder / name for name in kind.outputs):
            done = done if file.exists() or partial_file(file).exists() else None
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{manifest}: is not the manifest of a run: choose another folder, or add --overwrite"
        ) from error
    for name, value in command.items():
        if existing.get(name) != value:
            raise ConfigError(
                f"{folder} contains a run with other {name}: {existing.get(name)}, not {value}. "
                "Choose another folder, or start again with --overwrite"
            )
    return done


def _write_json(file: Path, content: Entry) -> None:
    with atomic_open(file) as stream:
        json.dump(content, stream, indent=1)
