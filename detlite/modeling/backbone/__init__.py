"""Backbones: images in, feature maps out."""

from .build import BACKBONES, Backbone, build_backbone

__all__ = ["BACKBONES", "Backbone", "build_backbone"]
