"""Data sets in COCO's annotation format (https://cocodataset.org/#format-data)."""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pycocotools.coco import COCO
from torch import Tensor
from torch.utils.data import Dataset

from ..structures.keypoints import PIXEL_CENTRE
from ..structures.packed_masks import PackedMasks
from .coco_json import read_coco_json, report
from .errors import DataError
from .images import MAX_PIXELS, image_problem, read_image
from .proposals import load_proposals
from .validation import annotation_problem, fill_missing

Target = dict[str, Any]


class CocoDataset(Dataset[tuple[Tensor, Target]]):
    """Pictures with their boxes, labels and masks, in the frame of the stored picture.

    `dataset[i]` is `(image, target)`: image uint8 RGB [3, H, W]; target as in torchvision:
    `boxes` float32 [N, 4] xyxy, `labels` int64 [N] in 1..K, `image_id` int, `size` (H, W), and
    `masks`, `PackedMasks` of N instances, if `train` and `masks` are set, `keypoints` float32
    [N, P, 3] of (x, y, visibility) if `keypoints` is. Crowd annotations are left out of it.

    The whole set is checked here, so that training does not stop at its last image: every entry
    of the annotation file, and that every picture exists, is complete and has the stated size.

    Args:
        annotations: the annotation file.
        images: the folder that the file names of the pictures are relative to.
        name: what the set is called in messages and results.
        kind: the type of its catalog entry, which says how it is measured.
        train: leave out images without a usable annotation.
        masks: every annotation must have a segmentation. Only training has it in its targets:
            evaluation compares with `coco_gt()`.
        masks_as_runs: draw polygons at the picture's size: what torchvision trains on.
        keypoints: every annotation must have keypoints, and a category name them.
        min_keypoints: leave out images with fewer labelled keypoints, too, if `train`.
        skip_bad: log, count and leave out bad annotations and pictures, instead of an error.
        proposals: a file of regions, see `load_proposals`: `proposals` float32 [P, 4] of targets.
        most_proposals: how many of an image.
        max_pixels, picture_bits: of a picture, see `read_image`.

    Raises:
        DataError: naming file and annotation or image id; from `dataset[i]` too, where a picture
            proves damaged only when it is decoded.
    """

    def __init__(
        self,
        annotations: Path,
        images: Path,
        *,
        name: str = "",
        kind: str = "coco",
        train: bool = False,
        masks: bool = True,
        masks_as_runs: bool = False,
        keypoints: bool = False,
        min_keypoints: int = 0,
        skip_bad: bool = False,
        proposals: Path | None = None,
        most_proposals: int = 1000,
        max_pixels: int = MAX_PIXELS,
        picture_bits: int = 16,
    ) -> None:
        self.name = name or annotations.stem
        self.kind = kind
        self.annotation_file = annotations
        self._folder = images
        self._picture_limits = max_pixels, picture_bits
        self._with_masks = train and masks
        self._masks_as_runs = masks_as_runs
        # LVIS v0.5 has file names as well, without the folder, and some that COCO gave up.
        content = read_coco_json(annotations, by_url=kind == "lvis")
        known = ("id", "name", "keypoints") if keypoints else ("id", "name")
        self.categories: list[dict[str, Any]] = sorted(
            ({key: row[key] for key in known if key in row} for row in content["categories"]),
            key=lambda category: category["id"],
        )
        self.keypoint_names = keypoint_names(self.categories)
        if keypoints and not self.keypoint_names:
            raise DataError(
                f"{annotations}: no category names its keypoints, which MODEL.KEYPOINT_ON needs: "
                '"keypoints": ["nose", "left_eye", ...]'
            )
        problems: list[str] = []
        usable, self._bad = self._usable_annotations(content, problems, masks)
        broken = self._broken_images(content["images"], problems)
        report(problems, annotations, skip_bad)

        kept = [
            row
            for row in content["images"]
            if row["id"] not in broken and (not train or _teaches(usable[row["id"]], min_keypoints))
        ]
        if not kept:
            needed = f" and {min_keypoints} keypoints" if min_keypoints else ""
            raise DataError(f"{annotations}: no image has a usable annotation{needed} to train on")
        self.image_ids: list[int] = [row["id"] for row in kept]
        self._file_names: list[str] = [row["file_name"] for row in kept]
        # (height, width)
        self.sizes: list[tuple[int, int]] = [(row["height"], row["width"]) for row in kept]
        # width / height
        self.aspect_ratios: list[float] = [width / height for height, width in self.sizes]
        # One bytes object an image: a fraction of the memory of parsed lists, and not copied
        # page by page into the loader's processes as their reference counts change.
        self._targets = [self._pack(usable[row["id"]], row) for row in kept]
        self._proposals = None
        if proposals:
            self._proposals = load_proposals(proposals, self.image_ids, self.sizes, most_proposals)

    def __len__(self) -> int:
        return len(self.image_ids)

    def __getitem__(self, index: int) -> tuple[Tensor, Target]:
        height, width = self.sizes[index]
        try:
            image = read_image(self.image_path(index), (height, width), *self._picture_limits)
        except DataError as error:
            raise DataError(f"{error} (image id {self.image_ids[index]})") from error
        arrays, segmentations = pickle.loads(self._targets[index])
        target: Target = {name: torch.from_numpy(array) for name, array in arrays.items()}
        target |= {"image_id": self.image_ids[index], "size": (height, width)}
        if self._with_masks:
            target["masks"] = PackedMasks.from_segmentations(
                segmentations, height, width, self._masks_as_runs
            )
        if self._proposals is not None:
            target["proposals"] = self._proposals[index]
        return image, target

    def image_path(self, index: int) -> Path:
        """The picture file of `dataset[index]`."""
        return self._folder / self._file_names[index]

    def coco_gt(self) -> COCO:
        """The ground truth of exactly these images, for COCO evaluation, crowd included.

        The annotation file is read again, as evaluation alone needs all of it.
        """
        content = read_coco_json(self.annotation_file)
        kept = set(self.image_ids)
        content["images"] = [row for row in content["images"] if row["id"] in kept]
        content["annotations"] = [
            row
            for position, row in enumerate(content["annotations"])
            if position not in self._bad and row["image_id"] in kept
        ]
        coco = COCO()
        coco.dataset = fill_missing(content)
        with contextlib.redirect_stdout(io.StringIO()):
            coco.createIndex()
        return coco

    def _usable_annotations(
        self, content: dict[str, Any], problems: list[str], masks: bool
    ) -> tuple[dict[int, list[dict[str, Any]]], set[int]]:
        """Sound annotations that are not crowd, by image id; and where in the file the unsound are.

        By position, as their ids may be what is wrong.
        """
        sizes = {row["id"]: (row["height"], row["width"]) for row in content["images"]}
        category_ids = {category["id"] for category in self.categories}
        keypoint_count = len(self.keypoint_names)
        usable: dict[int, list[dict[str, Any]]] = {image_id: [] for image_id in sizes}
        seen: set[int] = set()
        bad: set[int] = set()
        for position, annotation in enumerate(content["annotations"]):
            problem = annotation_problem(annotation, sizes, category_ids, masks, keypoint_count)
            if problem is None and annotation["id"] in seen:
                problem = "the id occurs twice"
            if problem is not None:
                bad.add(position)
                where = f"annotation {annotation.get('id', f'at position {position}')}"
                problems.append(f"{where} (image {annotation.get('image_id')}): {problem}")
                continue
            seen.add(annotation["id"])
            if not annotation.get("iscrowd", 0):
                usable[annotation["image_id"]].append(annotation)
        return usable, bad

    def _broken_images(self, rows: list[dict[str, Any]], problems: list[str]) -> set[int]:
        if not self._folder.is_dir():
            raise DataError(f"{self._folder}: no such folder of pictures (data set {self.name})")

        def check(row: dict[str, Any]) -> str | None:
            size = row["height"], row["width"]
            return image_problem(self._folder / row["file_name"], size, *self._picture_limits)

        broken = set()
        # Threads, as on a network disk the time goes into waiting.
        with ThreadPoolExecutor(8) as pool:
            for row, problem in zip(rows, pool.map(check, rows), strict=True):
                if problem is not None:
                    broken.add(row["id"])
                    problems.append(f"image {row['id']} ({row['file_name']}): {problem}")
        return broken

    def _pack(self, annotations: list[dict[str, Any]], image: dict[str, Any]) -> bytes:
        label = {category["id"]: k for k, category in enumerate(self.categories, start=1)}
        boxes = np.array([row["bbox"] for row in annotations], np.float64).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]  # xywh -> xyxy
        boxes = boxes.clip(0, [image["width"], image["height"]] * 2).astype(np.float32)
        labels = np.array([label[row["category_id"]] for row in annotations], np.int64)
        arrays: dict[str, np.ndarray] = {"boxes": boxes, "labels": labels}
        if self.keypoint_names:
            points = [row["keypoints"] for row in annotations]
            shape = (len(points), len(self.keypoint_names), 3)
            arrays["keypoints"] = np.array(points, np.float32).reshape(shape)
            arrays["keypoints"][..., :2] += PIXEL_CENTRE
        segmentations = [row["segmentation"] for row in annotations] if self._with_masks else None
        return pickle.dumps((arrays, segmentations), protocol=5)


def _teaches(annotations: list[dict[str, Any]], min_keypoints: int) -> bool:
    """Whether an image with these annotations has anything to train on."""
    if min_keypoints == 0:
        return bool(annotations)
    labelled = sum(v > 0 for row in annotations for v in row["keypoints"][2::3])
    return labelled >= min_keypoints


def keypoint_names(categories: Sequence[dict[str, Any]]) -> list[str]:
    """Those of the first category that has keypoints; all categories share them."""
    return next((row["keypoints"] for row in categories if row.get("keypoints")), [])
