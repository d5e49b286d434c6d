"""What the tests share is in states.py; their comparisons are those of fidelity.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
