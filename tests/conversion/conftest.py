"""What the tests share is in states.py; their comparisons are those of fidelity.py."""

from __future__ import annotations
