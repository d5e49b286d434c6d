"""Pictures of detections, and curves of a training run."""

from .curves import plot_metrics
from .detections import contact_sheet, draw_detections

__all__ = ["contact_sheet", "draw_detections", "plot_metrics"]
