"""Models: backbones, RPN, RoI heads and the detectors made of them. Start reading at `rcnn.py`."""

from .build import build_model

__all__ = ["build_model"]
