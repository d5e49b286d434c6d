"""The record that all formats are read into, and its conversion to COCO."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from detlite.data.annotations.judge import CLIPPED
from detlite.data.annotations.store import table_of
from detlite.data.findings import Findings
from detlite.files.errors import DataError
from detlite.structures.masks.formats import Segmentation

_DECIMALS = 3  # of coordinates in pixels
_MAX_LISTED = 5  # bad labels in a message
_MIN_EXCEEDING = 4  # objects that can show that images have another size
# What happens to bad labels with --skip-bad.
WITH_IMAGE = "They are skipped together with their images."
AS_REGION = "They become ignored regions: detections there are neither trained nor measured."
AS_BACKGROUND = "Their positions are unknown. They are skipped: the objects count as background."

Box = tuple[float, float, float, float]  # (x, y, width, height) in pixels


@dataclass(frozen=True)
class LabeledObject:
    """An object in an image.

    Attributes:
        category: name of the category; crowds and ignored regions with an unknown name belong to
            all categories.
        segmentation: polygons [[x1, y1, x2, y2, ...], ...] in pixels, or an RLE; None if unknown.
        crowd: skipped in training and ignored in evaluation.
        ignored: the object cannot be used: detections in its region do not count.
        keypoints: (x, y, visibility) by name; absent names are not labeled.
    """

    category: str
    box: Box
    segmentation: Segmentation | None = None
    crowd: bool = False
    ignored: bool = False
    keypoints: Mapping[str, tuple[float, float, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class LabeledImage:
    """An image file, its (height, width), its objects, and its split if the labels name one."""

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
        categories, keypoints: names in the order of their ids; () before all images are read.
        flip_idx: for each keypoint, the index of its counterpart in a flipped image, if known.
        findings: what was skipped or reinterpreted, with the files of images.
    """

    source: Path
    images: Sequence[LabeledImage]
    categories: Sequence[str] = ()
    keypoints: Sequence[str] = ()
    flip_idx: Sequence[int] | None = None
    findings: Findings = field(default_factory=Findings)

    @property
    def image_folder(self) -> Path:
        """The deepest folder that contains all images."""
        return Path(os.path.commonpath([image.file.parent for image in self.images]))


@dataclass(eq=False)
class Conversion:
    """The options of reading a dataset, and a record of what was skipped or reinterpreted.

    Attributes:
        masks: meaning of label images, see `mask_files`; None: refuse ambiguous ones.
        skip_bad: skip bad labels instead of refusing the dataset.
        upright: labels belong to images whose EXIF orientation is applied.
        findings: what the user should know.
        bad: the distinct problems of bad labels.
        objects: number of valid objects.
    """

    masks: str | None = None
    skip_bad: bool = False
    upright: bool = True
    findings: Findings = field(default_factory=Findings)
    bad: dict[str, None] = field(default_factory=dict)
    objects: int = 0

    @contextmanager
    def collect(self, effect: str = WITH_IMAGE) -> Iterator[None]:
        """Record the DataError of a bad label, and continue after the `with` block."""
        try:
            yield
        except DataError as error:
            self.add_bad(str(error), effect)
            if effect == WITH_IMAGE:
                self.findings.assign(None)

    def add_bad(self, problem: str, effect: str, images: Sequence[Path] = ()) -> None:
        """Record the problem of a bad label, and what happens to it with `skip_bad`."""
        self.bad[problem] = None
        self.findings.add("bad labels", effect, problem, "label", images=images)

    def finish(self) -> Findings:
        """Return the findings.

        Raises DataError for bad labels, unless they are skipped, and if most objects exceed their
        images.
        """
        count = len(self.bad)
        if count and not self.skip_bad:
            listed = "; ".join([*self.bad][:_MAX_LISTED]) + "; ..." * (count > _MAX_LISTED)
            number = f" ({count} bad labels)" * (count > 1)
            raise DataError(
                f"{listed}{number}. Fix the labels, or skip bad ones with `detlite init --skip-bad`"
            )
        for found in self.findings:
            most = max(_MIN_EXCEEDING, self.objects // 2 + 1)
            if found.what == CLIPPED[0] and found.count >= most:
                raise DataError(
                    f"{found.example}: {found.count} of {self.objects} objects exceed their images "
                    "like this one. If the images were resized after labeling, use the original "
                    "ones"
                )
        return self.findings


def to_coco(dataset: LabeledDataset) -> dict[str, Any]:
    """Convert a dataset to the content of a COCO file; equal datasets produce equal contents.

    Ids start at 1: images are sorted by path, and annotations by their images. File names are
    relative to `dataset.image_folder`. Raises DataError if there are no images or objects.
    """
    if not dataset.images:
        reasons = "".join(f"; {finding}" for finding in dataset.findings)
        raise DataError(f"{dataset.source}: contains no images that can be used{reasons}")
    ids = {name: number for number, name in enumerate(dataset.categories, start=1)}
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    folder, numbers = dataset.image_folder, dict[str, int]()
    for image in sorted(dataset.images, key=lambda image: image.file.as_posix()):
        name = image.file.relative_to(folder).as_posix()
        height, width = image.size
        numbers[str(image.file)] = number = len(images) + 1
        shared = {"image_id": number}
        images.append({"id": number, "file_name": name, "height": height, "width": width})
        for obj in image.objects:
            row = shared | _annotation(obj, dataset.keypoints)
            for category_id in [ids[obj.category]] if obj.category in ids else ids.values():
                ids_of_row = {"id": len(annotations) + 1, "category_id": category_id}
                annotations.append(ids_of_row | row)
    if not annotations:
        raise DataError(f"{dataset.source}: none of {len(images)} images has a labeled object")
    categories: list[dict[str, Any]] = [{"id": ids[name], "name": name} for name in ids]
    for row in categories if dataset.keypoints else ():
        row |= {"keypoints": list(dataset.keypoints), "skeleton": []}
        row |= {"flip_idx": list(dataset.flip_idx)} if dataset.flip_idx else {}
    content: dict[str, Any] = {"images": images, "annotations": annotations}
    content |= {"categories": categories, "converted": True}  # findings have all unused images
    if len(dataset.findings):
        content["findings"] = Findings(
            replace(one, images={str(numbers[file]): n for file, n in one.images.items()})
            for one in dataset.findings
        ).to_json()
    areas = table_of(content, dataset.source).column("areas")
    for row, area in zip(annotations, areas.tolist(), strict=True):
        row["area"] = area
    return content


def _annotation(obj: LabeledObject, keypoints: Sequence[str]) -> dict[str, Any]:
    """Return an annotation without its ids."""
    row: dict[str, Any] = {"bbox": _round(obj.box), "iscrowd": int(obj.crowd)}
    if obj.ignored:
        row["ignore"] = 1
    if isinstance(obj.segmentation, list):
        row["segmentation"] = [_round(polygon) for polygon in obj.segmentation]
    elif obj.segmentation is not None:
        row["segmentation"] = obj.segmentation
    if keypoints:
        points = [obj.keypoints.get(name, (0, 0, 0)) for name in keypoints]
        row["keypoints"] = _round(value for point in points for value in point)
        row["num_keypoints"] = sum(visibility > 0 for _, _, visibility in points)
    return row


def _round(values: Iterable[float]) -> list[float]:
    return [round(value, _DECIMALS) for value in values]
