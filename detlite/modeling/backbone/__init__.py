"""Backbones convert images to feature maps."""

from . import necks  # registers them
from .build import BACKBONES, BODIES, NECKS, Backbone, build_backbone

__all__ = ["BACKBONES", "BODIES", "NECKS", "Backbone", "build_backbone", "necks"]
