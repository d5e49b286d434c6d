"""Data sets in COCO form, their transforms, and the loaders that feed training and evaluation."""

from .datasets import cityscapes as cityscapes
from .datasets import pascal_voc as pascal_voc
from .datasets import synthetic as synthetic
from .datasets.catalog import (
    DATASETS,
    JoinedDataset,
    build_dataset,
    build_train_dataset,
    check_num_classes,
    warn_of_known,
)
from .datasets.coco import CocoDataset
from .errors import DataError
from .loading.batch_loader import LoaderProcessError, naming_dead_loaders
from .loading.loader import build_test_loader, build_train_loader
from .remote import shard_index  # noqa: F401  (register their data set types)

__all__ = [
    "DATASETS",
    "CocoDataset",
    "DataError",
    "JoinedDataset",
    "LoaderProcessError",
    "build_dataset",
    "build_test_loader",
    "build_train_dataset",
    "build_train_loader",
    "check_num_classes",
    "naming_dead_loaders",
    "warn_of_known",
]
