"""Models: backbones, RPN, RoI heads and the detectors made of them. Start reading at `rcnn.py`."""

from . import proposal_network, rcnn, retinanet
from .build import build_model

__all__ = ["build_model", "proposal_network", "rcnn", "retinanet"]
