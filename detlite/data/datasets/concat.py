"""Several datasets as one."""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import torch.utils.data
from torch import Tensor

from detlite.files.errors import DataError

from .coco import CocoDataset, MinSize, Target


class ConcatDataset(torch.utils.data.ConcatDataset[tuple[Tensor, Target]]):
    """Several datasets as one. Raises DataError if their categories or keypoints differ."""

    def __init__(self, datasets: Sequence[CocoDataset]) -> None:
        super().__init__(datasets)
        first = datasets[0]
        known = {(row["id"], row["name"]) for row in first.categories}
        for other in datasets[1:]:
            if other.keypoint_names != first.keypoint_names:
                raise DataError(
                    f"{other.annotation_file}: the keypoints differ from those of "
                    f"{first.annotation_file}"
                )
            difference = known ^ {(row["id"], row["name"]) for row in other.categories}
            if difference:
                number, name = min(difference)
                raise DataError(
                    f"{other.annotation_file}: the categories differ from those of "
                    f"{first.annotation_file}: only one has {number} ({name!r}). Datasets that "
                    "are trained on together need the same ids and names"
                )
        self.parts = datasets
        self.name = " + ".join(dataset.name for dataset in datasets)
        self.categories = first.categories
        self.keypoint_names = first.keypoint_names

    def load(self, index: int, min_size: MinSize | None = None) -> tuple[Tensor, Target]:
        """See `CocoDataset.load`."""
        part = bisect_right(self.cumulative_sizes, index)
        first = self.cumulative_sizes[part - 1] if part else 0
        return self.parts[part].load(index - first, min_size)

    @property
    def aspect_ratios(self) -> list[float]:
        """The width / height of the images."""
        return [ratio for dataset in self.parts for ratio in dataset.aspect_ratios]

    @property
    def shards(self) -> np.ndarray | None:
        """The shard of each image, see `CocoDataset.shards`; an image file counts as a shard."""
        of_parts = [dataset.shards for dataset in self.parts]
        if all(shards is None for shards in of_parts):
            return None
        first, joined = 0, []
        for dataset, shards in zip(self.parts, of_parts, strict=True):
            joined.append(first + (np.arange(len(dataset)) if shards is None else shards))
            first = int(joined[-1][-1]) + 1
        return np.concatenate(joined)
