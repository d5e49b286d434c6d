"""Datasets of any annotation tool: recognize, read, and convert to COCO json.

No library is used because libraries lose accuracy (supervision rounds polygons to whole pixels,
datumaro rounds coordinates to 1/100), silently skip unknown parts, and do not name the invalid
line.
"""

from .find_annotations import Source, convert, find_sets
from .labeled_dataset import Conversion

__all__ = ["Conversion", "Source", "convert", "find_sets"]
