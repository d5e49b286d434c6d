"""Draw detections on images, and the curves of a training run."""

from .detections import contact_sheet, draw_detections
from .metric_curves import plot_metrics

__all__ = ["contact_sheet", "draw_detections", "plot_metrics"]
