"""How maskrcnn-benchmark counts, where its YAML files leave that to its code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Keys of ours, and its ways.
COUNTING: dict[str, Any] = {
    "MODEL.INCLUSIVE_BOXES": True,
    "MODEL.RESNETS.BN_EPSILON": 0.0,  # of its frozen norm, the only batch norm of its ResNets
    "MODEL.RPN.ANCHOR_ROUNDING": "cell",
    "MODEL.ROI_MASK_HEAD.PASTE": "whole-pixels",
    "MODEL.ROI_KEYPOINT_HEAD.PIXEL_CENTRE": 0.0,
    "INPUT.RESIZE": "floor",
}


def is_left_by_its_training(chain: Sequence[tuple[Path, Mapping[str, Any]]]) -> bool:
    """Whether files, as `read_chain` gives them, are a config that its training left behind.

    That states every key, among them one that only its programs set.
    """
    return any("PATHS_CATALOG" in content for _, content in chain)
