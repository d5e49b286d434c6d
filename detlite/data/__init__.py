"""Datasets in COCO format, their transforms, and the loaders of training and evaluation."""

from detlite.errors import LoaderProcessError
from detlite.files.errors import DataError

from .datasets.build import (
    build_dataset,
    build_test_datasets,
    build_train_dataset,
    check_num_classes,
    log_findings,
)
from .datasets.catalog import DATASETS
from .datasets.coco import CocoDataset, ConcatDataset
from .datasets.items import Items, item_files
from .datasets.options import DatasetOptions
from .loading.batch_loader import explain_dead_loader
from .loading.loader import build_test_loader, build_train_loader

__all__ = [
    "DATASETS",
    "CocoDataset",
    "ConcatDataset",
    "DataError",
    "DatasetOptions",
    "Items",
    "LoaderProcessError",
    "build_dataset",
    "build_test_datasets",
    "build_test_loader",
    "build_train_dataset",
    "build_train_loader",
    "check_num_classes",
    "explain_dead_loader",
    "item_files",
    "log_findings",
]
