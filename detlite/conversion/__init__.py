"""Checkpoints of torchvision, detectron2, mmdetection, maskrcnn-benchmark, Caffe2 and timm.

Each framework has a file or folder with a `CheckpointSource`, which describes how to recognise,
rename, adapt and configure its checkpoints. `convert` applies it.
"""

from .convert import SOURCES, convert, detect_source
from .weight_catalog import find_weights, weight_file

__all__ = ["SOURCES", "convert", "detect_source", "find_weights", "weight_file"]
