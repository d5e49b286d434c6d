"""Detection over HTTP.

`app.py` answers, `limits.py` says what is taken, `batching.py` lets requests share a batch.
"""

from .app import build_app
from .limits import Limits

__all__ = ["Limits", "build_app"]
