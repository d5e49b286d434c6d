"""Data sets in COCO form, their transforms, and the loaders that feed training and evaluation."""

from . import cityscapes, pascal_voc, shapes, shard_index  # noqa: F401  (register their data set types)
from .batch_loader import LoaderProcessError, naming_dead_loaders
from .catalog import (
    DATASETS,
    JoinedDataset,
    build_dataset,
    build_train_dataset,
    check_num_classes,
    warn_of_known,
)
from .coco import CocoDataset
from .errors import DataError
from .loader import build_test_loader, build_train_loader

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
