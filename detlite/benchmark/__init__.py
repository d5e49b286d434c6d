"""How fast the operators are: detlite's and torchvision's in turn, on the same input.

Every case is one row: the median time of each library and how near the memory limit detlite comes.
torchvision always gets the contiguous float32 input that it likes best.

To add cases, write a function that yields them and name it in `GROUPS` of `measure.py`.
"""

from .measure import Row, benchmark_ops

__all__ = ["Row", "benchmark_ops"]
