"""The detectors: start reading at `rcnn.py`."""

from . import proposal_network, rcnn, retinanet, separable
from .build import build_model

__all__ = ["build_model", "proposal_network", "rcnn", "retinanet", "separable"]
