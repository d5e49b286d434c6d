"""Datasets of any annotation tool: recognize, read, and convert to COCO json.

The readers are our own because libraries lose accuracy (supervision rounds polygons to whole
pixels, datumaro coordinates to 1/100), skip in silence what they do not know, and do not name the
invalid line.
"""

from .find_annotations import Source, convert, find_sets

__all__ = ["Source", "convert", "find_sets"]
