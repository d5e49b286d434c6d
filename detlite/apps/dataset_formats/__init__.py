"""Data sets in other forms than COCO's: recognised, read, and written as COCO json.

Own readers of a screen each: supervision cuts YOLO's polygons to whole pixels, holds each as a
bitmap and makes new polygons of that, reads VOC's coordinates as integers, and does not say which
line is wrong.
"""

from .find_annotations import Source, convert, find_sets

__all__ = ["Source", "convert", "find_sets"]
