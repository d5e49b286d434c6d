"""Formats of the files of predictions.

An entry is a dict {"image": {"id", "file_name", "height", "width"}, "objects": COCO results}, or
{"image": {"id", "file_name"}, "problem": text} for an image that cannot be read.
"""

import json
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from detlite.evaluation.detection_results import BACKGROUND_CATEGORY
from detlite.inference.inputs import is_any_url
from detlite.registry import Registry
from detlite.structures.object_fields import own_values

from .row_file import RowFile

_logger = logging.getLogger(__name__)

Entry = dict[str, Any]
# All files that a writer may create, the second as patterns. Copies of images and the labels next
# to them are not listed.
OUTPUTS = ("results.json", "results.csv", "summary.csv", "annotations.json", "tasks.json",
           "images.json")  # fmt: skip
OTHER_FILES = ("data.yaml", "labels.txt", "labels.xml", "geojson/*.geojson")
COCO_BEGIN = '{"info": {}, "annotations": ['
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


class PredictionWriter(ABC):
    """Writes the files of a run in one format.

    Attributes:
        outputs: name of each file without which the run is not complete, and the text before its
            rows.
        files: the opened outputs.
        copies_images: True for labels, which need the images next to them. `entry["image"]["copy"]`
            is then the file name of an image in the folder `images`.
        has_fields: True if the files contain own fields of objects, see `OBJECT_FIELDS`.
    """

    outputs: tuple[tuple[str, str], ...] = ()
    copies_images: ClassVar[bool] = False
    has_fields: ClassVar[bool] = True

    def __init__(self, folder: Path, model: ModelInfo) -> None:
        self.folder, self.model = folder, model
        self.files, self._warned = list[RowFile](), set[str]()

    def open(self) -> None:
        """Open the outputs, as an earlier process left them."""
        self.files = [RowFile(self.folder / name, begin) for name, begin in self.outputs]

    @abstractmethod
    def add(self, entry: Entry, count: int) -> None:
        """Write the files of an image that could be read, and its rows of the outputs.

        Args:
            count: the number of objects in the images before.
        """

    def end(self, images: Iterator[Entry]) -> None:
        """Complete the outputs, and write the files of all images."""
        for file in self.files:
            file.complete()

    def coco_end(self, images: Iterable[Entry]) -> Iterator[str]:
        """Yield what follows the list of annotations in a COCO file, see COCO_BEGIN."""
        yield ', "images": ['
        for number, image in enumerate(images):
            yield ",\n" * (number > 0) + json.dumps(image)
        yield f'], "categories": {json.dumps(list(self.model.categories))}}}\n'

    def objects(self, entry: Entry) -> Iterator[Entry]:
        """Yield the objects without the background; log the own fields that the files lack."""
        for row in entry["objects"]:
            if not self.has_fields and (names := own_values(row).keys() - self._warned):
                self._warned |= names
                _logger.warning("this format has no place for %s", ", ".join(sorted(names)))
            if row["category_id"] != BACKGROUND_CATEGORY["id"]:
                yield row


_RESULTS, _LABELS = ("detlite.apps.prediction_files." + name for name in ("results", "labels"))
FORMATS: Registry[type[PredictionWriter]] = Registry(
    "format of predictions",
    on_demand={
        **dict.fromkeys(("results", "csv", "measures"), _RESULTS),
        **dict.fromkeys(("coco", "yolo", "labelme", "label-studio", "geojson"), _LABELS),
    },
)
