"""Image files: sources, formats, reading within limits, and checks of whole datasets."""

from .formats import IMAGE_READERS
from .pixels import ImageOptions
from .reading import count_pages, read_image

__all__ = ["IMAGE_READERS", "ImageOptions", "count_pages", "read_image"]
