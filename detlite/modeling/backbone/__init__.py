"""Backbones convert images to feature maps."""

from . import mobilenet, necks, resnet, vit  # registers them
from .build import BACKBONES, BODIES, NECKS, Backbone, build_backbone

__all__ = [
    "BACKBONES", "BODIES", "NECKS", "Backbone", "build_backbone", "mobilenet", "necks", "resnet",
    "vit",
]  # fmt: skip
