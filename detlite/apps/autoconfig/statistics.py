"""Statistics of a dataset."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import torch

from detlite.data.annotations.ids import parse_integer
from detlite.data.annotations.selection import Selection
from detlite.data.annotations.store import open_table
from detlite.data.annotations.table_findings import table_findings
from detlite.data.images.checks import check_images
from detlite.data.images.pixels import DEFAULT_OPTIONS, ImageOptions
from detlite.data.images.reading import read_image
from detlite.data.images.sources import ImageFolder, ImageSource
from detlite.data.locations import Location, local_copy
from detlite.data.transforms.tiles import TrainingTiles
from detlite.files.errors import DataError
from detlite.structures.keypoints import keypoint_names

from .image_values import DEFAULT_VALUES, ImageValues, measure_values, spread


@dataclass(frozen=True)
class DatasetStatistics:
    """Statistics of a dataset with I images and N valid objects that are not crowds.

    Attributes:
        sizes: float64 [I, 2], (height, width) of the images.
        boxes: float64 [N, 4], (x, y, width, height) in pixels of the image.
        owners: int64 [N], index of the image of each object.
        labels: int64 [N], index in `names` of each object.
        areas: float64 [N], pixels of the objects.
        names: names of the categories, ordered by id.
        with_masks: number of objects with a valid segmentation.
        keypoints: names of the keypoints, if a category has any.
        with_keypoints: number of objects with labeled keypoints.
        keypoint_objects: number of objects of the categories that name keypoints.
        keypoint_pairs: names of keypoints that mirroring exchanges, if a category lists them.
        problems: by (with masks, with keypoints): the number of annotations and images that the
            loader would refuse for such a model, and the first problem.
        decoding: median seconds to read an image on one core, from a sample.
        top_bottom: brightness of the upper half of each image of the sample minus the lower half,
            -1 to 1, float64 [S].
        empty: number of images without annotations.
        tiles: number of tiles of images with objects, and of whole images trained next to them; 0
            if the images are not divided.
        values: channels and values of the images, from the sample.
    """

    sizes: np.ndarray
    boxes: np.ndarray
    owners: np.ndarray
    labels: np.ndarray
    areas: np.ndarray
    names: list[str]
    with_masks: int
    keypoints: list[str]
    with_keypoints: int
    keypoint_objects: int
    problems: Mapping[tuple[bool, bool], tuple[int, str]]
    decoding: float
    top_bottom: np.ndarray
    empty: int = 0
    tiles: int = 0
    keypoint_pairs: Sequence[list[str]] = ()
    values: ImageValues = DEFAULT_VALUES

    @property
    def images(self) -> int:
        """Number of images, or of tiles."""
        return len(self.sizes)

    @cached_property
    def categories(self) -> list[tuple[str, int, int]]:
        """(name, number of objects, number of images) of each category."""
        images, length = len(self.sizes), len(self.names)
        in_images = np.unique(self.labels * images + self.owners) // images
        counts = (np.bincount(x, minlength=length).tolist() for x in (self.labels, in_images))
        return [*zip(self.names, *counts, strict=True)]

    @property
    def per_image(self) -> np.ndarray:
        """Number of objects in each image, int64 [I]."""
        return np.bincount(self.owners, minlength=len(self.sizes))

    @property
    def sides(self) -> np.ndarray:
        """sqrt(width * height) of each object in pixels, float64 [N]."""
        return np.sqrt(self.boxes[:, 2] * self.boxes[:, 3])

    @property
    def ratios(self) -> np.ndarray:
        """height / width of each object, float64 [N]."""
        return self.boxes[:, 3] / self.boxes[:, 2]

    def mean_per_image(self, values: np.ndarray) -> np.ndarray:
        """Return the mean of values [N] of the objects of each image that has some, float64."""
        counts = self.per_image
        return np.bincount(self.owners, values, len(counts))[counts > 0] / counts[counts > 0]

    def tiled(self, side: int) -> "DatasetStatistics":
        """Return the statistics of tiles of this side without overlap, and of whole images.

        An object belongs to the tile of its center, or to its image if no tile shows enough of it,
        see `TrainingTiles.exceeding`. A side of 0 means no tiles.
        """
        if not side:
            return self
        tiles, exceeding = TrainingTiles(side), np.zeros(len(self.boxes), bool)
        corners = torch.from_numpy(self.boxes + np.pad(self.boxes[:, :2], ((0, 0), (2, 0))))
        order = np.argsort(self.owners, kind="stable")
        by_image = np.split(order, np.cumsum(self.per_image)[:-1])
        for (height, width), rows in zip(self.sizes.astype(int).tolist(), by_image, strict=True):
            exceeding[rows] = tiles.exceeding(corners[rows], (height, width)).numpy()
        grid = np.ceil(self.sizes / side).astype(np.int64)
        first = np.concatenate([[0], np.cumsum(grid.prod(axis=1))])
        centers = self.boxes[:, :2] + self.boxes[:, 2:] / 2
        cells = np.minimum((centers // side).astype(np.int64), grid[self.owners, ::-1] - 1)
        cells[exceeding] = 0  # the boxes are relative to the whole image
        column, row = cells.T
        owners = first[self.owners] + row * grid[self.owners, 1] + column
        whole, number_of = np.unique(self.owners[exceeding], return_inverse=True)
        owners[exceeding] = first[-1] + number_of
        sizes = np.minimum(self.sizes, side).repeat(grid.prod(axis=1), axis=0)
        return replace(
            self,
            tiles=int(grid.prod(axis=1)[np.unique(self.owners)].sum()) + len(whole),
            sizes=np.concatenate([sizes, self.sizes[whole]]),
            boxes=np.concatenate([self.boxes[:, :2] - cells * side, self.boxes[:, 2:]], axis=1),
            owners=owners,
        )

    def select(self, keep: np.ndarray) -> "DatasetStatistics":
        """Return the statistics of the objects for which `keep`, bool [N], is True."""
        columns = ("boxes", "areas", "owners", "labels")
        return replace(self, **{name: getattr(self, name)[keep] for name in columns})


def compute_statistics(
    annotations: Location,
    images: ImageFolder,
    image_options: ImageOptions = DEFAULT_OPTIONS,
    check: bool = True,
    crowds_as_objects: bool = False,
) -> DatasetStatistics:
    """Read an annotation file, check all of its images if `check`, and decode some of them.

    Raises DataError if the file cannot be used, all images are missing or damaged, or no object has
    a valid box.
    """
    with local_copy(annotations) as file:
        table = open_table(file)
    count = len(table)
    files = [images / table.image(number)["file_name"] for number in range(count)]
    values = measure_values(spread(files), image_options)
    image_options = values.options
    bad_images = check_images(table, images, image_options)[0] if check else {}
    if bad_images and image_options.exif_orientation:
        # The sizes tell if annotations refer to the stored pixels, without EXIF orientation.
        stored = replace(image_options, exif_orientation=False)
        bad_if_stored, _ = check_images(table, images, stored)
        if len(bad_if_stored) < len(bad_images):
            bad_images, image_options = bad_if_stored, stored
            values = replace(values, options=stored)
    if len(bad_images) == count:
        raise DataError(f"{annotations}: none of its {count} images can be used: {bad_images[0]}")
    selection = Selection(crowds_as_objects=crowds_as_objects)
    numbers = [number for number in range(count) if number not in bad_images]
    owners = table.owners
    used = np.flatnonzero(selection.objects(table.flags) & np.isin(owners, numbers))
    owners, boxes = owners[used], table.column("boxes")[used]
    labels = table.column("category_ids")[used]
    if not len(boxes):
        problem = f"{annotations}: no image has an object that can be used"
        found = table_findings(table, selection, skip=True)
        raise DataError("; ".join([problem, *map(str, found)]))
    decoding, top_bottom = _decode_sample([files[number] for number in numbers], image_options)
    categories = sorted(table.content["categories"], key=lambda row: row["id"])
    named = [row["id"] for row in categories if row.get("keypoints")]
    problems = {}
    for masks, keypoints in product((False, True), repeat=2):
        texts, bad = table.problems(replace(selection, masks=masks, keypoints=keypoints), limit=1)
        texts += bad_images.values()
        problems[masks, keypoints] = bad + len(bad_images), texts[0] if texts else ""
    with_masks = table.counts(replace(selection, masks=True).objects)
    with_keypoints = table.counts(selection.objects, table.column("labeled") > 0)
    return DatasetStatistics(
        sizes=table.sizes.astype(np.float64),
        boxes=boxes,
        owners=owners,
        labels=np.searchsorted([row["id"] for row in categories], labels),
        areas=table.column("areas")[used],
        names=[str(row["name"]) for row in categories],
        with_masks=int(with_masks[numbers].sum()),
        keypoints=table.keypoint_names,
        with_keypoints=int(with_keypoints[numbers].sum()),
        keypoint_objects=int(np.isin(labels, named).sum()),
        problems=problems,
        decoding=decoding,
        top_bottom=top_bottom,
        empty=int((table.counts()[numbers] == 0).sum()),
        keypoint_pairs=next(filter(None, map(_keypoint_pairs, categories)), []),
        values=values,
    )


def _decode_sample(files: Sequence[ImageSource], options: ImageOptions) -> tuple[float, np.ndarray]:
    """Return median seconds and the brightness differences of images spread over the list."""
    times, differences = [], []
    for file in spread(files):
        start = time.perf_counter()
        try:
            image = read_image(file, options=options)
        except DataError:  # damaged content
            continue
        times.append(time.perf_counter() - start)
        half = image.shape[1] // 2
        if half:
            upper, lower = image[:, :half], image[:, -half:]
            differences.append((upper.float().mean() - lower.float().mean()).item() / 255)
    return float(np.median(times or [0.0])), np.array(differences or [0.0])


def _keypoint_pairs(category: Mapping[str, Any]) -> list[list[str]]:
    """Return the pairs of keypoints that a category lists for mirroring, [] if none.

    `flip_idx` (ultralytics) contains the index of the counterpart of each keypoint.
    """
    names, flipped = keypoint_names([dict(category)]), category.get("flip_idx")
    indices = [*map(parse_integer, flipped)] if isinstance(flipped, list) else []
    pairs = [(first, second) for first, second in enumerate(indices) if first != second]
    if {*indices} != {*range(len(names))} or {(b, a) for a, b in pairs} != {*pairs}:
        return []
    return [[names[a], names[b]] for a, b in pairs if b is not None and a < b]
