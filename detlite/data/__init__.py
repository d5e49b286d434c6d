"""Data sets in COCO form, their transforms, and the loaders that feed training and evaluation."""

from . import cityscapes, pascal_voc, shapes  # noqa: F401  (register their data set types)
from .catalog import (
    DATASETS,
    JoinedDataset,
    build_dataset,
    build_train_dataset,
    check_num_classes,
)
from .coco import CocoDataset
from .errors import DataError
from .loader import (
    LoaderProcessError,
    build_test_loader,
    build_train_loader,
    naming_dead_loaders,
)

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
]
