"""Backbones convert images to feature maps."""

from .build import BACKBONES, Backbone, build_backbone

__all__ = ["BACKBONES", "Backbone", "build_backbone"]
