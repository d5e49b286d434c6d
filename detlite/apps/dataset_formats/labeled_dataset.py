"""The record that all formats are read into, and its conversion to COCO."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detlite.data.datasets.coco_values import fill_missing
from detlite.data.errors import DataError
from detlite.data.findings import Findings
from detlite.structures.masks.formats import Segmentation

_DECIMALS = 3  # of coordinates in pixels
_MAX_LISTED = 5  # bad labels in a message
# What happens to bad labels with --skip-bad.
WITH_IMAGE = "They are left out together with their images."
AS_REGION = "They become ignored regions: what is detected there is neither trained nor measured."
AS_BACKGROUND = (
    "Their places are not known. They are left out, and the objects count as background."
)


@dataclass(frozen=True)
class LabeledObject:
    """An object in an image.

    Attributes:
        category: its name; if no other object has it, `crowd` and `ignored` are for all categories.
        box: (x, y, width, height) in pixels.
        segmentation: polygons [[x1, y1, x2, y2, ...], ...] in pixels, or an RLE; None if unknown.
        crowd: skipped in training and ignored in evaluation.
        ignored: the place of an object that cannot be used: detections there do not count.
        keypoints: (x, y, visibility) by name; names that an object lacks are not labeled.
    """

    category: str
    box: tuple[float, float, float, float]
    segmentation: Segmentation | None = None
    crowd: bool = False
    ignored: bool = False
    keypoints: Mapping[str, tuple[float, float, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class LabeledImage:
    """An image file, its (height, width) and its objects; its split if the labels name one."""

    file: Path
    size: tuple[int, int]
    objects: Sequence[LabeledObject]
    split: str | None = None


@dataclass(frozen=True)
class LabeledDataset:
    """The images of a dataset.

    Attributes:
        source: the folder or file that was read, for messages.
        images: in any order.
        categories: names in the order of their ids; None: the names that occur, sorted.
        keypoints: names of the keypoints in their order; None: the names that occur.
        flip_idx: index of the keypoint on the other side for each keypoint, if known.
        findings: what is left out or reinterpreted.
    """

    source: Path
    images: Sequence[LabeledImage]
    categories: Sequence[str] | None = None
    keypoints: Sequence[str] | None = None
    flip_idx: Sequence[int] | None = None
    findings: Findings = field(default_factory=Findings)

    @property
    def image_folder(self) -> Path:
        """The deepest folder that contains all images."""
        return Path(os.path.commonpath([image.file.parent for image in self.images]))


@dataclass
class Conversion:
    """The options of reading a dataset, and what is left out or reinterpreted.

    Attributes:
        masks: meaning of label images, see `mask_files`; None: refuse those with several meanings.
        skip_bad: skip bad labels instead of refusing the dataset.
        output: folder for images that are stored inside label files; None: in the dataset.
        findings: what the user should know.
        bad: the problems of bad labels.
        skipped: what happens to them with `skip_bad`.
    """

    masks: str | None = None
    skip_bad: bool = False
    output: Path | None = None
    findings: Findings = field(default_factory=Findings)
    bad: list[str] = field(default_factory=list)
    skipped: Findings = field(default_factory=Findings)

    @contextmanager
    def collect(self, effect: str = WITH_IMAGE) -> Iterator[None]:
        """Record the DataError of a bad label, and continue behind the block."""
        try:
            yield
        except DataError as error:
            self.add_bad(str(error), effect)

    def add_bad(self, problem: str, effect: str) -> None:
        """Record the problem of a bad label, and what happens to it with `skip_bad`."""
        self.bad.append(problem)
        self.skipped.add("bad labels", effect, problem, "label")

    def finish(self) -> Findings:
        """Return the findings. Raises DataError for bad labels, unless they are left out."""
        count, first = len(self.bad), "; ".join(self.bad[:_MAX_LISTED])
        if not count:
            return self.findings
        if not self.skip_bad:
            more = (
                f"; ... ({count} bad labels)" if count > _MAX_LISTED else f" ({count} bad labels)"
            )
            raise DataError(
                f"{first}{more * (count > 1)}. Fix the labels, or leave bad ones out with "
                "`detlite init --skip-bad`"
            )
        return Findings([*self.findings, *self.skipped])


def to_coco(dataset: LabeledDataset) -> dict[str, Any]:
    """Convert a dataset to the content of a COCO file; equal datasets give equal contents.

    Ids start at 1: images are sorted by path, and annotations follow their images. File names are
    relative to `dataset.image_folder`. Raises DataError if there are no images or objects, or two
    files label the same image.
    """
    if not dataset.images:
        raise DataError(f"{dataset.source}: contains no images")
    names = dataset.categories or category_names(dataset.images)
    ids = {name: number for number, name in enumerate(names, start=1)}
    points = dataset.keypoints or keypoint_names(dataset.images)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    folder = dataset.image_folder
    named = [(image.file.relative_to(folder).as_posix(), image) for image in dataset.images]
    for name, image in sorted(named, key=lambda pair: pair[0]):
        if images and images[-1]["file_name"] == name:
            raise DataError(f"{image.file}: two files label this image: remove one")
        height, width = image.size
        image_id = len(images) + 1
        images.append({"id": image_id, "file_name": name, "height": height, "width": width})
        pairs = [
            (obj, category)
            for obj in image.objects
            for category in ([ids[obj.category]] if obj.category in ids else ids.values())
        ]
        for obj, category_id in pairs:
            row = {
                "id": len(annotations) + 1,
                "image_id": image_id,
                "category_id": category_id,
                "bbox": _rounded(obj.box),
                "iscrowd": int(obj.crowd),
                **({"ignore": 1} if obj.ignored else {}),
            }
            if isinstance(obj.segmentation, list):
                row["segmentation"] = [_rounded(polygon) for polygon in obj.segmentation]
            elif obj.segmentation is not None:
                row["segmentation"] = obj.segmentation
            if points:
                values = [obj.keypoints.get(point, (0, 0, 0)) for point in points]
                row["keypoints"] = _rounded(value for point in values for value in point)
                row["num_keypoints"] = sum(v > 0 for _, _, v in values)
            annotations.append(row)
    if not annotations:
        raise DataError(f"{dataset.source}: none of {len(images)} images has a labeled object")
    shared: dict[str, Any] = {"keypoints": list(points), "skeleton": []} if points else {}
    if points and dataset.flip_idx:
        shared["flip_idx"] = list(dataset.flip_idx)
    rows = [{"id": number, "name": name, **shared} for name, number in ids.items()]
    content = {"images": images, "annotations": annotations, "categories": rows}
    if len(dataset.findings):
        content["findings"] = dataset.findings.to_json()
    return fill_missing(content)


def category_names(images: Iterable[LabeledImage]) -> list[str]:
    """Return the sorted categories of the objects in images, without those of ignored ones."""
    objects = (obj for image in images for obj in image.objects)
    return sorted({obj.category for obj in objects if obj.category and not obj.ignored})


def keypoint_names(images: Iterable[LabeledImage]) -> list[str]:
    """Return the names of all keypoints in the order in which they occur first."""
    names = (name for image in images for obj in image.objects for name in obj.keypoints)
    return list(dict.fromkeys(names))


def _rounded(values: Iterable[float]) -> list[float]:
    return [round(value, _DECIMALS) for value in values]
