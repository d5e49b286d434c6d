"""Data sets in other forms than COCO's: recognised, read, and written as COCO json.

Own readers of a screen each, because what supervision reads (YOLO, VOC) it holds as one bitmap an
object and turns into new polygons, numbers VOC's categories in the order in which they occur, and
does not say which line is wrong.
"""

from .sets import Source, convert, find_sets

__all__ = ["Source", "convert", "find_sets"]
