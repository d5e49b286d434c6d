"""The detectors: start reading at `rcnn.py`."""

from . import proposal_network, rcnn, retinanet
from .build import build_model
from .layers import separable

__all__ = ["build_model", "proposal_network", "rcnn", "retinanet", "separable"]
