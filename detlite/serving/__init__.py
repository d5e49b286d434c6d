"""Detection over HTTP: `app.py` is the service, `batching.py` how requests share a batch."""

from .app import Limits, build_app

__all__ = ["Limits", "build_app"]
