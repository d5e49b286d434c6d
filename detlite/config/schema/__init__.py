"""The schema: every config key with its default, what it may be, and what it does.

Names and defaults follow maskrcnn-benchmark, so that its YAML files keep their meaning. A default
of None marks a key that is derived from others (`config/derive.py`) and may only restate them.
`docs/config.md` is generated from this table.
"""

from __future__ import annotations

from . import backbone, data, evaluation, general, retinanet, roi_heads, rpn, solver
from .key import Key

__all__ = ["KEYS", "NO_EFFECT", "Key"]

KEYS: tuple[Key, ...] = (
    *general.KEYS,
    *backbone.KEYS,
    *rpn.KEYS,
    *retinanet.KEYS,
    *roi_heads.KEYS,
    *data.KEYS,
    *solver.KEYS,
    *evaluation.KEYS,
)

# Keys of maskrcnn-benchmark that are read and left out, and why they have no effect here.
NO_EFFECT = {
    "AMP_VERBOSE": "mixed precision is torch.amp's, which has no such switch",
    "MODEL.ROI_MASK_HEAD.POSTPROCESS_MASKS": "masks are always pasted into the image",
    "MODEL.ROI_MASK_HEAD.MLP_HEAD_DIM": "no mask head has a fully connected layer",
    "MODEL.ROI_KEYPOINT_HEAD.MLP_HEAD_DIM": "no keypoint head has a fully connected layer",
    "MODEL.RETINANET.STRADDLE_THRESH": "RetinaNet is trained on every anchor, there as well",
    "PATHS_CATALOG": "data sets are built in or in DATASETS.CATALOG",
}
