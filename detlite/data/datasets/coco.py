"""Data sets in COCO's annotation format (https://cocodataset.org/#format-data)."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pycocotools.coco import COCO
from torch import Tensor
from torch.utils.data import Dataset

from detlite.data.errors import DataError
from detlite.data.index.annotation_checks import fill_missing
from detlite.data.index.cache import open_index
from detlite.data.index.coco_checks import MOST_SHOWN, keypoint_names, report
from detlite.data.index.image_checks import picture_problems
from detlite.data.index.index import CROWD, AnnotationIndex, unsound_bits
from detlite.data.loading.image_io import MAX_PIXELS
from detlite.data.loading.image_reading import read_image
from detlite.data.remote.paths import Location, local_copy, named
from detlite.data.remote.shards import Folder, ShardFolder, ShardPicture, picture_of
from detlite.structures.keypoints import PIXEL_CENTER
from detlite.structures.masks.packed import PackedMasks

from .proposals import load_proposals

Target = dict[str, Any]


class CocoDataset(Dataset[tuple[Tensor, Target]]):
    """Pictures with their boxes, labels and masks, in the frame of the stored picture.

    `dataset[i]` is `(image, target)`: image uint8 RGB [3, H, W]; target as in torchvision:
    `boxes` float32 [N, 4] xyxy, `labels` int64 [N] in 1..K, `image_id` int, `size` (H, W), and
    `masks`, `PackedMasks` of N instances, if `train` and `masks` are set, `keypoints` float32
    [N, P, 3] of (x, y, visibility) if `keypoints` is. Crowd annotations are left out of it.

    The whole set is checked when it is first opened, so that training does not stop at its last
    image: every entry of the annotation file (`open_index`), and that every picture exists, is
    complete and has the stated size (`picture_problems`).

    Args:
        annotations: the annotation file, here or at a URL.
        images: the folder that the file names of the pictures are relative to, here or at a URL, or
            the shards that they are in.
        name: what the set is called in messages and results.
        kind: the type of its catalog entry, which says how it is measured.
        train: leave out images without a usable annotation.
        masks: every annotation must have a segmentation. Only training has it in its targets:
            evaluation compares with `coco_gt()`.
        masks_as_runs: draw polygons at the picture's size: what torchvision trains on.
        keypoints: every annotation must have keypoints, and a category name them.
        min_keypoints: leave out images with fewer labelled keypoints, too, if `train`.
        background: keep images without any annotation after all, if `train`: they teach that there
            is nothing to find.
        skip_bad: log, count and leave out bad annotations and pictures, instead of an error.
        proposals: a file of regions, see `load_proposals`: `proposals` float32 [P, 4] of targets.
        most_proposals: how many of an image.
        max_pixels, picture_bits, exif_orientation: of a picture, see `read_image`.
        check_pictures: look at all of them; if not, a bad one shows when it is read.

    Raises:
        DataError: naming file and annotation or image id; from `dataset[i]` too, where a picture
            proves damaged only when it is decoded.
    """

    def __init__(
        self,
        annotations: Location,
        images: Folder,
        *,
        name: str = "",
        kind: str = "coco",
        train: bool = False,
        masks: bool = True,
        masks_as_runs: bool = False,
        keypoints: bool = False,
        min_keypoints: int = 0,
        background: bool = False,
        skip_bad: bool = False,
        proposals: Location | None = None,
        most_proposals: int = 1000,
        max_pixels: int = MAX_PIXELS,
        picture_bits: int = 16,
        exif_orientation: bool = True,
        check_pictures: bool = True,
    ) -> None:
        self.name = name or annotations.stem
        self.kind = kind
        self.annotation_file = images.name if isinstance(images, ShardFolder) else annotations
        self._folder = images
        self._picture_limits = max_pixels, picture_bits, exif_orientation
        self._with_masks = train and masks
        self._masks_as_runs = masks_as_runs
        # LVIS v0.5 has file names as well, without the folder, and some that COCO gave up.
        with local_copy(annotations) as file, named(file, self.annotation_file):
            self._index = open_index(file, by_url=kind == "lvis")
        known = ("id", "name", "keypoints") if keypoints else ("id", "name")
        self.categories: list[dict[str, Any]] = sorted(
            (
                {key: row[key] for key in known if key in row}
                for row in self._index.content["categories"]
            ),
            key=lambda category: category["id"],
        )
        self._labels = {row["id"]: k for k, row in enumerate(self.categories, start=1)}
        self.keypoint_names = keypoint_names(self.categories)
        if keypoints and not self.keypoint_names:
            raise DataError(
                f"{self.annotation_file}: no category names its keypoints, which "
                'MODEL.KEYPOINT_ON needs: "keypoints": ["nose", "left_eye", ...]'
            )
        if isinstance(images, Path) and not images.is_dir():
            raise DataError(
                f"{images}: no such folder of pictures (data set {self.name}); mend `images` of "
                "its entry in DATASETS.CATALOG, which is relative to DATASETS.ROOT"
            )
        problems, count = self._index.problems(masks, len(self.keypoint_names), MOST_SHOWN)
        broken: dict[int, str] = {}
        if check_pictures:
            broken = picture_problems(self._index, images, *self._picture_limits)
        if isinstance(images, Path):
            _check_folder(self._index, images, broken, self.annotation_file)
        if isinstance(images, ShardFolder):
            told = self._index.content["problems"]
            problems, count = [*told["first"], *problems], count + told["count"]
        problems += broken.values()
        report(problems, count + len(broken), self.annotation_file, skip_bad)

        self._unsound = unsound_bits(masks, keypoints)
        keeps = np.ones(len(self._index.image_ids), bool)
        if train:
            taught = self._index.counts(self._unsound | CROWD, min_keypoints > 0)
            keeps = taught >= max(min_keypoints, 1)
            if background and keeps.any():
                keeps |= self._index.counts(without=0) == 0  # unlike one of a crowd alone
        keeps[list(broken)] = False
        if not keeps.any():
            needed = f" and {min_keypoints} keypoints" if min_keypoints else ""
            raise DataError(
                f"{self.annotation_file}: no image has a usable annotation{needed} to train on"
            )
        # An array, as lists of objects would be copied page by page into the loader's processes
        # while their reference counts change.
        self._numbers = np.flatnonzero(keeps)
        self._proposals = None
        if proposals:
            with local_copy(proposals) as file:
                limits = self.sizes, most_proposals
                self._proposals = load_proposals(file, self.image_ids, *limits, proposals.name)

    @property
    def image_ids(self) -> list[int]:
        """The ids of the images, as a new list."""
        return self._index.image_ids[self._numbers].tolist()

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Their (height, width), as a new list."""
        return [(height, width) for height, width in self._index.sizes[self._numbers].tolist()]

    @property
    def aspect_ratios(self) -> list[float]:
        """Their width / height, as a new list."""
        sizes = self._index.sizes[self._numbers]
        return (sizes[:, 1] / sizes[:, 0]).tolist()

    @property
    def shards(self) -> np.ndarray | None:
        """Which shard each image is in, int64 [N], never decreasing; None: pictures are files."""
        if not isinstance(self._folder, ShardFolder):
            return None
        ends = np.cumsum(self._index.content["shards"])
        return np.searchsorted(ends, self._numbers, side="right")

    @property
    def has_objects(self) -> bool:
        """Whether any of its images has a sound annotation, crowds included."""
        return bool(self._index.counts(self._unsound)[self._numbers].any())

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> tuple[Tensor, Target]:
        number = int(self._numbers[index])
        entry = self._index.image(number)
        height, width = entry["height"], entry["width"]
        picture = picture_of(self._folder, entry)
        try:
            image = read_image(picture, (height, width), *self._picture_limits)
        except DataError as error:
            raise DataError(f"{error} (image id {entry['id']})") from error
        rows = self._index.annotations(number, self._unsound | CROWD)
        target = self._target(rows, height, width)
        target |= {"image_id": entry["id"], "size": (height, width)}
        if self._proposals is not None:
            target["proposals"] = self._proposals[index]
        return image, target

    def image_path(self, index: int) -> Location | ShardPicture:
        """The picture file of `dataset[index]`."""
        return picture_of(self._folder, self._index.image(int(self._numbers[index])))

    def labels(self, index: int) -> np.ndarray:
        """The labels of `dataset[index]`, int64 [N], without its picture."""
        found = self._index.category_ids(int(self._numbers[index]), self._unsound | CROWD)
        return np.array([self._labels[number] for number in found.tolist()], np.int64)

    def coco_gt(self, annotations: bool = True) -> COCO:
        """The ground truth of exactly these images, for COCO evaluation, crowd included.

        Without `annotations` it has images and categories alone, which take little memory.
        """
        content = dict(self._index.content)
        content["images"] = [self._index.image(number) for number in self._numbers.tolist()]
        content["annotations"] = [
            row
            for number in (self._numbers.tolist() if annotations else ())
            for row in self._index.annotations(number, self._unsound)
        ]
        coco = COCO()
        coco.dataset = fill_missing(content)
        with contextlib.redirect_stdout(io.StringIO()):
            coco.createIndex()
        return coco

    def _target(self, annotations: list[dict[str, Any]], height: int, width: int) -> Target:
        boxes = np.array([row["bbox"] for row in annotations], np.float64).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]  # xywh -> xyxy
        boxes = boxes.clip(0, [width, height] * 2).astype(np.float32)
        labels = np.array([self._labels[row["category_id"]] for row in annotations], np.int64)
        target: Target = {"boxes": torch.from_numpy(boxes), "labels": torch.from_numpy(labels)}
        if self.keypoint_names:
            shape = (len(annotations), len(self.keypoint_names), 3)
            points = np.array([row["keypoints"] for row in annotations], np.float32).reshape(shape)
            points[..., :2] += PIXEL_CENTER
            target["keypoints"] = torch.from_numpy(points)
        if self._with_masks:
            segmentations = [row["segmentation"] for row in annotations]
            target["masks"] = PackedMasks.from_segmentations(
                segmentations, height, width, self._masks_as_runs
            )
        return target


def _check_folder(
    index: AnnotationIndex, images: Path, broken: dict[int, str], annotations: Location | str
) -> None:
    """Raises DataError if no picture is in the folder, which then is the wrong one."""
    if len(broken) < len(index.image_ids) or not broken:
        return
    name = index.image(0)["file_name"]
    if not (images / name).exists():
        raise DataError(
            f"{images}: holds none of the {len(broken)} pictures of {annotations}, such as {name}: "
            "name the folder that these names are relative to, as `images` in DATASETS.CATALOG"
        )
