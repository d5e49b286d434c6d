"""Datasets of YOLO, PASCAL VOC, LabelMe and mask files: recognize, read, and convert to COCO json.

The readers are our own because supervision's lose accuracy: it rounds YOLO's polygons to whole
pixels, rounds VOC's coordinates, and does not name the invalid line.
"""

from .find_annotations import Source, convert, find_sets

__all__ = ["Source", "convert", "find_sets"]
