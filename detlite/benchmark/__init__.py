"""How fast the operators are: detlite's and torchvision's in turn, on the same input.

Every case is one row: the median time of each library and how near the memory limit detlite comes.
torchvision always gets the contiguous float32 input that it likes best.

To add cases, write a function with the decorator `cases` in the file of their operator, or in a new
file that is imported here.
"""

from . import crops, keypoints, masks, matching, nms, roi  # noqa: F401  (register their cases)
from .measure import Row, benchmark_ops

__all__ = ["Row", "benchmark_ops"]
