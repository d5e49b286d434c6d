"""Weights of torchvision, detectron2, mmdetection, maskrcnn-benchmark, Caffe2's Detectron, timm.

A file for each framework says how its files are recognised, renamed, brought into our layout and
which config they need (`source.Source`); `convert` drives them.
"""

from .convert import SOURCES, Converted, convert, entries_of, source_of
from .download.weight_catalog import find_weights, weight_file
from .torchvision import to_torchvision

__all__ = [
    "SOURCES",
    "Converted",
    "convert",
    "entries_of",
    "find_weights",
    "source_of",
    "to_torchvision",
    "weight_file",
]
