"""Datasets in COCO's annotation format (https://cocodataset.org/#format-data).

Letters in shapes: N objects of an image, P keypoints of an object.
"""

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pycocotools.coco import COCO
from torch import Tensor
from torch.utils.data import Dataset

from detlite.data.errors import refuse
from detlite.data.findings import Finding
from detlite.data.images import checks
from detlite.data.images.pixels import DEFAULT_OPTIONS, ImageOptions
from detlite.data.images.reading import read_image, read_reduced
from detlite.data.images.sources import ImageArchive, ImageFolder, StoredImage, image_file_of
from detlite.data.index.build import open_index
from detlite.data.index.states import Selection, located
from detlite.data.remote.file_cache import FileCache
from detlite.data.remote.locations import Location, errors_naming, local_copy
from detlite.files.errors import DataError
from detlite.structures.keypoints import PIXEL_CENTER
from detlite.structures.masks.packed import PackedMasks

from .coco_masks import fill_missing, read_segmentation
from .coco_values import keypoint_names, read_keypoints
from .proposals import load_proposals

Target = dict[str, Any]
# Maps the size (height, width) of an image to the smallest size at which it may be read.
MinSize = Callable[[tuple[int, int]], tuple[int, int]]


class CocoDataset(Dataset[tuple[Tensor, Target]]):
    """Images with their boxes, labels, masks and keypoints, at the size of the image file.

    `dataset[i]` is `(image, target)`. `image` is uint8 RGB [3, H, W]. `target` follows torchvision:
    `boxes` float32 [N, 4] xyxy, `labels` int64 [N] in 1..K, `image_id` int, `size` (H, W). With
    `train` and `masks` it has `masks`, a `PackedMasks` of N masks. With `keypoints` it has
    `keypoints` float32 [N, P, 3] of (x, y, visibility), and with `proposals` it has `proposals`
    float32 [R, 4]. With `train` it has `ignored_boxes` float32 [M, 4], regions of objects that
    cannot be used. Crowd annotations are not part of the target.

    The constructor checks every entry of the annotation file (`open_index`) and every image file
    (`check_images`), so that training does not stop at the last image. A DataError names the
    file and the annotation or image. `dataset[i]` raises it if an image cannot be decoded.
    `findings` lists what is skipped or reinterpreted.

    Args:
        kind: the type of the catalog entry, which selects the evaluator.
        train: skip images without a usable annotation.
        masks: require a segmentation of every annotation. Only training targets have masks.
        masks_as_rle: draw polygons at the size of the image file, as torchvision does.
        keypoints: require keypoints of every annotation, and their names in a category.
        min_keypoints: in training, skip images with fewer labeled keypoints.
        background: in training, keep images without any annotation as negative examples.
        skip_bad: skip bad annotations and images instead of raising an error.
        check_images: check all image files; otherwise a bad one fails when it is read.
        cache: stores large images at the reduced size of `load`.
    """

    def __init__(
        self,
        annotations: Location,
        images: ImageFolder,
        *,
        name: str = "",
        kind: str = "coco",
        train: bool = False,
        masks: bool = True,
        masks_as_rle: bool = False,
        keypoints: bool = False,
        min_keypoints: int = 0,
        background: bool = False,
        skip_bad: bool = False,
        crowds_as_objects: bool = False,
        proposals: Location | None = None,
        max_proposals: int = 1000,
        image_options: ImageOptions = DEFAULT_OPTIONS,
        check_images: bool = True,
        cache: FileCache | None = None,
    ) -> None:
        self.name = name or annotations.stem
        self.kind = kind
        self.annotation_file = images.name if isinstance(images, ImageArchive) else annotations
        self.images = images
        self._image_options = image_options
        self._cache = cache
        self._train = train
        self._with_masks = train and masks
        self._masks_as_runs = masks_as_rle
        with local_copy(annotations) as file, errors_naming(self.annotation_file, instead_of=file):
            self.index = open_index(file, by_url=kind == "lvis")
        fields = ("id", "name", "keypoints") if keypoints else ("id", "name")
        rows = sorted(self.index.content["categories"], key=lambda row: row["id"])
        self.categories = [{key: row[key] for key in fields if key in row} for row in rows]
        self._labels = {row["id"]: k for k, row in enumerate(self.categories, start=1)}
        self.keypoint_names = keypoint_names(self.categories)
        if keypoints and not self.keypoint_names:
            raise DataError(
                f"{self.annotation_file}: no category has keypoint names, which "
                'MODEL.KEYPOINT_ON needs: "keypoints": ["nose", "left_eye", ...]'
            )
        if isinstance(images, Path) and not images.is_dir():
            raise DataError(
                f"{images}: the image folder of dataset {self.name} does not exist. Correct "
                "`images` of its entry in DATASETS.CATALOG, which is relative to DATASETS.ROOT"
            )
        self.selection = Selection(masks, keypoints, crowds_as_objects)
        bad_images, image_findings = self._check_entries(check_images, skip_bad)
        uses_empty = background or not train
        self.findings = self.index.findings(self.selection, skip_bad, bad_images, uses_empty)
        self.findings += image_findings
        keep = np.ones(len(self.index.image_ids), bool)
        if train:
            values = self.index.labeled_keypoints if min_keypoints else 1
            usable = self.index.counts(self.selection.objects, values)
            keep = usable >= max(min_keypoints, 1)
            if background and keep.any():
                keep |= self.index.counts() == 0  # not images with only crowds
        keep[list(bad_images)] = False
        if not keep.any():
            required = f" and {min_keypoints} keypoints" if min_keypoints else ""
            raise DataError(
                f"{self.annotation_file}: no image has a usable annotation{required} to train on"
            )
        # An array, because the reference counts of a list's elements would copy its memory into
        # every loader process.
        self._numbers = np.flatnonzero(keep)
        self._proposals = None
        if proposals:
            images_read = self.image_ids, self.sizes, max_proposals
            with local_copy(proposals) as file:
                self._proposals = load_proposals(file, *images_read, proposals.name)

    @property
    def image_ids(self) -> list[int]:
        return self.index.image_ids[self._numbers].tolist()

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """The (height, width) of the images."""
        return [(height, width) for height, width in self.index.sizes[self._numbers].tolist()]

    @property
    def aspect_ratios(self) -> list[float]:
        """The width / height of the images."""
        return [width / height for height, width in self.sizes]

    @property
    def shards(self) -> np.ndarray | None:
        """The shard of each image, non-decreasing int64 [images]; None for image files."""
        if not isinstance(self.images, ImageArchive):
            return None
        ends = np.cumsum(self.index.content["shards"])
        return np.searchsorted(ends, self._numbers, side="right")

    @property
    def has_objects(self) -> bool:
        """True if an image has a valid annotation, crowds included."""
        return bool(self.index.counts(located)[self._numbers].any())

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> tuple[Tensor, Target]:
        return self.load(index)

    def load(self, index: int, min_size: MinSize | None = None) -> tuple[Tensor, Target]:
        """Return `dataset[index]`; with `min_size`, the image may be smaller than `size`."""
        number = int(self._numbers[index])
        entry = self.index.image(number)
        height, width = size = entry["height"], entry["width"]
        file, options = image_file_of(self.images, entry), self._image_options
        try:
            if min_size is None:
                image = read_image(file, size, options)
            else:
                image = read_reduced(file, size, options, min_size(size), self._cache)
        except DataError as error:
            raise DataError(f"{error} (image id {entry['id']})") from error
        rows = self.index.annotations(number, self.selection.objects)
        target = self._target(rows, height, width)
        if self._train:
            ignored = self.index.annotations(number, self.selection.ignored)
            boxes = [row.get("region", row["bbox"]) for row in ignored]
            target["ignored_boxes"] = _corners(boxes, height, width)
        target |= {"image_id": entry["id"], "size": size}
        if self._proposals is not None:
            target["proposals"] = self._proposals[index]
        return image, target

    def image_path(self, index: int) -> Path | StoredImage:
        """Return the image file of `dataset[index]`."""
        return image_file_of(self.images, self.index.image(int(self._numbers[index])))

    @property
    def folder(self) -> ImageFolder:
        """The folder of the images, without symbolic links."""
        return self.images.resolve() if isinstance(self.images, Path) else self.images

    def file_names(self) -> set[str]:
        """Return the names of the images in the annotation file."""
        return {self.index.image(number)["file_name"] for number in self._numbers.tolist()}

    def labels(self, index: int) -> np.ndarray:
        """Return the labels of `dataset[index]`, int64 [N], without reading the image."""
        ids = self.index.category_ids(int(self._numbers[index]), self.selection.objects)
        return np.array([self._labels[number] for number in ids.tolist()], np.int64)

    def coco_gt(self, annotations: bool = True) -> COCO:
        """Return the ground truth of these images for COCO evaluation, crowds included.

        Without `annotations` it has images and categories only, which take little memory.
        """
        content = dict(self.index.content)
        content["images"] = [self.index.image(number) for number in self._numbers.tolist()]
        content["annotations"] = annotated = []
        ids = [*self._labels]
        numbered = zip(self._numbers.tolist(), content["images"], strict=True)
        for number, image in numbered if annotations else ():
            rows = self.index.annotations(number, self.selection.objects)
            annotated += [{**row, "iscrowd": 0} for row in rows]
            for row in self.index.annotations(number, self.selection.regions):
                category = row.get("category_id")
                for k, category_id in enumerate([category] if category in ids else ids):
                    row_id = -1 - len(annotated) if k else row["id"]
                    region = {**row, "category_id": category_id, "id": row_id}
                    annotated.append(self._region(region, image))
        coco = COCO()
        coco.dataset = fill_missing(content)
        with contextlib.redirect_stdout(io.StringIO()):
            coco.createIndex()
        return coco

    def _region(self, row: dict[str, Any], image: dict[str, Any]) -> dict[str, Any]:
        """Return a crowd annotation with box, mask and keypoints for a region to ignore."""
        x, y, w, h = box = row.get("region", row["bbox"])
        mask = read_segmentation(row.get("segmentation"), image["height"], image["width"])
        polygon = [[x, y, x + w, y, x + w, y + h, x, y + h]]
        region = {**row, "iscrowd": 1, "bbox": box, "segmentation": mask.value or polygon}
        if count := len(self.keypoint_names):
            points = read_keypoints(row.get("keypoints"), count)
            region["keypoints"] = points.value or [0] * 3 * count
            if points.problem:
                region["num_keypoints"] = 0
        return region

    def _check_entries(
        self, check_images: bool, skip_bad: bool
    ) -> tuple[dict[int, str], list[Finding]]:
        """Return the results of `checks.check_images`.

        Raises DataError for a wrong folder, and without `skip_bad` for the first bad entry.
        """
        index, ids = self.index, self.index.image_ids
        without_size = np.flatnonzero((index.sizes == 0).any(axis=1))
        if len(without_size):
            raise DataError(
                f"{self.annotation_file}: image {ids[without_size[0]]} has no height and "
                "width. `detlite init` and `detlite check --repair` write a file with them"
            )
        folder, name = self.images, index.image(0)["file_name"]
        bad, findings = dict[int, str](), list[Finding]()
        if check_images:
            bad, findings = checks.check_images(index, folder, self._image_options)
        if len(bad) == len(ids) and isinstance(folder, Path) and not (folder / name).exists():
            raise DataError(
                f"{folder}: none of the {len(ids)} images of {self.annotation_file} is in "
                f"this folder, for example {name}. Set `images` in DATASETS.CATALOG to the folder "
                "that these names are relative to"
            )
        problems, count = index.problems(self.selection, limit=1)
        if isinstance(folder, ImageArchive):
            of_shards = index.content["problems"]
            problems, count = [*of_shards["first"], *problems], count + of_shards["count"]
        problems, count = [*problems, *bad.values()], count + len(bad)
        if count and not skip_bad:
            refuse(problems, count, self.annotation_file)
        return bad, findings

    def _target(self, annotations: list[dict[str, Any]], height: int, width: int) -> Target:
        labels = np.array([self._labels[row["category_id"]] for row in annotations], np.int64)
        boxes = _corners([row["bbox"] for row in annotations], height, width)
        target: Target = {"boxes": boxes, "labels": torch.from_numpy(labels)}
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


def _corners(boxes: list[list[float]], height: int, width: int) -> Tensor:
    """Convert boxes [N, 4] xywh to xyxy clipped to the image, float32."""
    corners = np.array(boxes, np.float64).reshape(-1, 4)
    corners[:, 2:] += corners[:, :2]
    return torch.from_numpy(corners.clip(0, [width, height] * 2).astype(np.float32))
