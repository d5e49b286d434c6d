"""Files of predictions that grow image by image, and continue after any interruption.

An entry is a dict {"image": {"id", "file_name", "height", "width"}, "objects": COCO results}, or
{"image": {"id", "file_name"}, "problem": text} for an image that cannot be read.
"""

import json
import logging
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from detlite.evaluation.detection_results import BACKGROUND_CATEGORY
from detlite.files.atomic_write import open_to_append
from detlite.files.reading import check_regular
from detlite.inference.inputs import is_any_url
from detlite.registry import Registry
from detlite.structures.object_fields import own_values

_logger = logging.getLogger(__name__)

Entry = dict[str, Any]
# All files that a writer may create: those that grow, and patterns of the others. Copies of images
# and the labels next to them are not listed.
OUTPUTS = ("results.json", "results.csv", "summary.csv", "annotations.json", "tasks.json")
OTHER_FILES = ("images.json", "data.yaml", "labels.txt", "labels.xml", "detections/part-*.parquet",
               "geojson/*.geojson")  # fmt: skip
_MAX_STEM = 50  # characters


@dataclass(frozen=True)
class ModelInfo:
    """Facts about a model that writers need.

    Attributes:
        categories: {"id", "name"} of each category, and "keypoints", the names of its keypoints.
        keypoint_center: position of a keypoint within its pixel, see `Convention`.
        channels: number of channels of its images.
    """

    categories: Sequence[Entry]
    keypoint_center: float = 0.0
    channels: int = 3

    @property
    def names(self) -> dict[int, str]:
        """Category names by id, with the background, which some models detect."""
        return {row["id"]: row["name"] for row in (BACKGROUND_CATEGORY, *self.categories)}


class GrowingFile:
    """A text file whose name ends in .partial until it is complete.

    Args:
        file: the complete file.
        start: the text that it starts with.
        position: number of bytes of an existing file to keep; 0: a new file.
    """

    def __init__(self, file: Path, start: str, position: int) -> None:
        path = partial_file(file)
        if path.exists():
            check_regular(path)
        self._stream = open_to_append(path)
        self._stream.truncate(position)
        self._stream.seek(position)
        if not position:
            self.write(start)
        self._separator = b",\n" if position > len(start) else b""  # of a list

    @property
    def position(self) -> int:
        """The length of the file in bytes."""
        return self._stream.tell()

    def write(self, text: str) -> None:
        """Append a text, so that it survives the end of the process."""
        self._stream.write(text.encode(errors="replace"))
        self._stream.flush()
        self._separator = b""

    def write_list(self, values: Iterable[Any]) -> None:
        """Append values to the list in JSON that the last text has started."""
        for value in values:
            self._stream.write(self._separator + json.dumps(value).encode())
            self._separator = b",\n"
        self._stream.flush()

    def close(self) -> None:
        """Write the file to the disk, so that it survives a power failure, and close it."""
        if not self._stream.closed:
            os.fsync(self._stream.fileno())
            self._stream.close()


def file_stem(entry: Entry) -> str:
    """Return the name of the files of an image without suffix; it starts with the id."""
    image = entry["image"]
    name = image["file_name"]
    if name.startswith("data:"):
        name = "data"
    elif is_any_url(name):
        path = urlsplit(name.partition("::")[0])
        name = re.sub(r"[^\w.-]", "_", unquote(Path(path.path or path.netloc).name))
    name = "".join(char if char.isprintable() else "_" for char in Path(name).stem[:_MAX_STEM])
    return f"{image['id']:04d}_{name}" + (f"_page{image['page']}" if "page" in image else "")


def partial_file(file: str | Path) -> Path:
    """Return the name of a file until it is complete."""
    return Path(f"{file}.partial")


class PredictionWriter(ABC):
    """Writes the entries of a run in one format.

    Attributes:
        outputs: names of the files that grow, and the texts that they start with.
        copies_images: True for labels, which need the images next to them. `entry["image"]["copy"]`
            is then the file name of an image in the folder `images`.
        has_fields: True if the files contain own fields of objects, see `OBJECT_FIELDS`.
        requires: a package that the format needs, and how to install it.
    """

    outputs: ClassVar[Mapping[str, str]] = {}
    copies_images: ClassVar[bool] = False
    has_fields: ClassVar[bool] = True
    requires: ClassVar[tuple[str, str] | None] = None

    def __init__(
        self, folder: Path, model: ModelInfo, positions: Sequence[int] = (), objects: int = 0
    ) -> None:
        """Start, or continue with the `positions` and the number of objects of an earlier run."""
        self.folder, self.model, self.objects = folder, model, objects
        self._warned = set[str]()
        places = positions or [0] * len(self.outputs)
        self.files = [
            GrowingFile(folder / name, start, place)
            for (name, start), place in zip(self.outputs.items(), places, strict=False)
        ]

    @property
    def positions(self) -> list[int] | None:
        """The state to continue from after the entries so far; None if some are only in memory."""
        return [file.position for file in self.files]

    def write(self, entry: Entry) -> None:
        """Write an entry of an image that could be read."""
        names = {name for row in entry["objects"] for name in own_values(row)}
        if not self.has_fields and names - self._warned:
            self._warned |= names
            _logger.warning("this format has no place for %s", ", ".join(sorted(names)))
        self.add(entry)
        self.objects += len(entry["objects"])

    @abstractmethod
    def add(self, entry: Entry) -> None:
        """Add an entry to the files; `objects` is the number of objects before it."""

    def flush(self) -> None:  # noqa: B027
        """Write the entries that are only in memory."""

    @abstractmethod
    def finish(self, images: Iterable[Entry]) -> None:
        """Write what follows the last entry, given the `image` of all entries."""

    def close(self) -> None:
        """Close the files. The run may continue, or else publish them."""
        for file in self.files:
            file.close()

    @classmethod
    def publish(cls, folder: Path) -> None:
        """Give complete files their names, unless they have them."""
        for file in (folder / name for name in cls.outputs):
            if partial_file(file).exists():
                os.replace(partial_file(file), file)


_RESULTS, _LABELS = ("detlite.apps.prediction_files." + name for name in ("results", "labels"))
FORMATS: Registry[type[PredictionWriter]] = Registry(
    "format of predictions",
    on_demand={
        **dict.fromkeys(("results", "csv", "measures", "parquet"), _RESULTS),
        **dict.fromkeys(("coco", "yolo", "labelme", "label-studio", "geojson"), _LABELS),
    },
)
