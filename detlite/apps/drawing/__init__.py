"""Draw detections on images, and the curves of a training run."""

from .detections import contact_sheet, draw_detections

__all__ = ["contact_sheet", "draw_detections"]
