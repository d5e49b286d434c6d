"""How often each image appears in an epoch: tiles and rare categories."""

import logging
import math
from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np
from yacs.config import CfgNode

from detlite.data.datasets.coco import CocoDataset, ConcatDataset
from detlite.data.transforms.tiles import TrainingTiles

logger = logging.getLogger(__name__)


def build_repeat_factors(
    cfg: CfgNode, dataset: CocoDataset | ConcatDataset, tiles: TrainingTiles | None
) -> np.ndarray:
    """Build the factors of all images from their tiles and DATALOADER.REPEAT_THRESHOLD."""
    threshold = cfg.DATALOADER.REPEAT_THRESHOLD
    parts = dataset.parts if isinstance(dataset, ConcatDataset) else [dataset]
    factors = np.ones(len(dataset))
    if tiles:
        counts = [
            tiles.count(size, part.boxes(k)) for part in parts for k, size in enumerate(part.sizes)
        ]
        whole = sum(counts) - sum(tiles.count(size) for part in parts for size in part.sizes)
        logger.info(
            "INPUT.TILE %d: an epoch has %d tiles of %d images, %d of them whole images for "
            "objects that are too large for tiles", tiles.side, sum(counts), len(counts), whole,
        )  # fmt: skip
        factors *= counts
    if threshold:
        labels = [set(part.labels(index).tolist()) for part in parts for index in range(len(part))]
        repeats = repeat_factors(labels, threshold)
        logger.info(
            "DATALOADER.REPEAT_THRESHOLD %g: %d of %d images are repeated, at most %.1f times; an "
            "epoch has %.0f images", threshold, (repeats > 1).sum(), len(repeats), repeats.max(),
            repeats.sum(),
        )  # fmt: skip
        factors *= repeats
    return factors


def repeat_factors(labels: Sequence[Collection[int]], threshold: float) -> np.ndarray:
    """Return how often each image should appear in an epoch so that rare categories are seen more.

    A category in a fraction f of the images has the factor max(1, sqrt(threshold / f)). An image
    has the largest factor of its categories (LVIS, arXiv 1908.03195, appendix B.2).
    """
    categories = [set(image_labels) for image_labels in labels]
    images = Counter(category for in_image in categories for category in in_image)
    factor = {
        category: max(1.0, math.sqrt(threshold * len(categories) / count))
        for category, count in images.items()
    }
    maxima = (max(map(factor.__getitem__, in_image), default=1.0) for in_image in categories)
    return np.array([*maxima])
