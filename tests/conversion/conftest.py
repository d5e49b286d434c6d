"""The tests share their comparisons with fidelity.py, which writes the page of results."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
