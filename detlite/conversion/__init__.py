"""Weights of torchvision, detectron2, maskrcnn-benchmark and Caffe2's Detectron."""

from .convert import SOURCES, Converted, convert, source_of, to_torchvision
from .pickles import RefusedPickleError, read_pickle
from .published import weight_file

__all__ = [
    "SOURCES",
    "Converted",
    "RefusedPickleError",
    "convert",
    "read_pickle",
    "source_of",
    "to_torchvision",
    "weight_file",
]
