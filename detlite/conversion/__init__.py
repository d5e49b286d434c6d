"""Weights of torchvision, detectron2, maskrcnn-benchmark, Caffe2's Detectron and timm."""

from .convert import (
    SOURCES,
    TIMM_BODY,
    Converted,
    convert,
    convert_timm,
    is_classifier,
    source_of,
    to_torchvision,
)
from .detectron2_zoo import named_settings
from .published import weight_file

__all__ = [
    "SOURCES",
    "TIMM_BODY",
    "Converted",
    "convert",
    "convert_timm",
    "is_classifier",
    "named_settings",
    "source_of",
    "to_torchvision",
    "weight_file",
]
