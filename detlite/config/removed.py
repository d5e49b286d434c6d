"""Keys and values of earlier versions and of maskrcnn-benchmark that have no effect.

Checkpoints and output folders contain complete configs, also the keys that were off. A removed key
is therefore ignored if it is off, or if it belongs to the training of stored weights, and an error
otherwise.
"""

import logging
from typing import Any

from detlite.errors import ConfigError

logger = logging.getLogger(__name__)

_PREDICTION = ("TEST.", "MODEL.FBNET.")  # sections that change what stored weights detect
# Except for these: init chose mask scores, and area limits group objects for metrics only.
_SAME_OBJECTS = ("TEST.MASK_CONFIDENCE", "TEST.AREA_LIMITS")

# Keys with the only value that remains, which turned them off. CHANGELOG.md says why they were
# removed, and what to use instead.
KEYS: dict[str, Any] = {
    "DATALOADER.SHARD_SHUFFLE": 2000,
    "DATASETS.TRAIN_SHARES": (),
    "DATASETS.UNLABELED": "",
    "INPUT.EARLY_FRACTION": 0.0,
    "INPUT.MOSAIC_PROB": 0.0,
    "INPUT.QUARTER_TURNS": False,
    "INPUT.SCALE_JITTER": (),
    "INPUT.TILE_OVERLAP": 0.2,
    "MODEL.FBNET.DW_CONV_SKIP_BN": True,
    "MODEL.FBNET.DW_CONV_SKIP_RELU": True,
    "MODEL.FBNET.KPTS_HEAD_LAST_SCALE": 0.0,
    "MODEL.FBNET.MASK_HEAD_LAST_SCALE": 0.0,
    "MODEL.FBNET.RPN_BN_TYPE": "",
    "MODEL.FBNET.RPN_HEAD_BLOCKS": 0,
    "MODEL.FBNET.SCALE_FACTOR": 1.0,
    **{f"MODEL.FBNET.{part}_HEAD_BLOCKS": () for part in ("DET", "MASK", "KPTS")},
    **{f"MODEL.FBNET.{part}_HEAD_STRIDE": 0 for part in ("DET", "MASK", "KPTS")},
    "MODEL.ROI_BOX_HEAD.CLASS_WEIGHTS": (),
    "MODEL.ROI_BOX_HEAD.LOSS": "cross_entropy",
    "MODEL.ROI_HEADS.DYNAMIC": False,
    "MODEL.ROI_MASK_HEAD.LOSS": "bce",
    "MODEL.TIMM.FROZEN_NORM": True,
    "SOLVER.AUTO_SCALE_LR": False,
    "SOLVER.BACKBONE_FREEZE_ITERS": 0,
    "SOLVER.BACKBONE_LR_FACTOR": 1.0,
    "SOLVER.MAX_SKIPPED_STEPS": 0,
    "SOLVER.MINUTES_INCLUDE_TEST": False,
    "TEST.AREA_LIMITS": (),
    "TEST.BOX_FROM_MASK": 0.0,
    "TEST.EXPECTED_RESULTS_SIGMA_TOL": 4.0,
    "TEST.MASK_CONFIDENCE": 0.0,
    "TEST.NMS.MIN_SCORE": 0.001,
    "TEST.NMS.SIGMA": 0.5,
    "TEST.NMS.VOTE_THRESH": 0.8,
    "TEST.TILE_OVERLAP": 0.2,
}
# Keys without effect, whatever their value: options of removed keys, and of maskrcnn-benchmark.
NO_EFFECT = {
    "INPUT.CROP_SIZE": "INPUT.SCALE_JITTER was removed",
    "INPUT.EARLY_SCALE": "INPUT.EARLY_FRACTION was removed",
    "MODEL.ROI_HEADS.DYNAMIC_BETA_RANK": "MODEL.ROI_HEADS.DYNAMIC was removed",
    "MODEL.ROI_HEADS.DYNAMIC_IOU_RANK": "MODEL.ROI_HEADS.DYNAMIC was removed",
    "MODEL.ROI_HEADS.DYNAMIC_PERIOD": "MODEL.ROI_HEADS.DYNAMIC was removed",
    "MODEL.ROI_BOX_HEAD.FOCAL_GAMMA": "MODEL.ROI_BOX_HEAD.LOSS was removed",
    "SOLVER.REFERENCE_IMS_PER_BATCH": "SOLVER.AUTO_SCALE_LR was removed",
    "AMP_VERBOSE": "torch.amp has no such option",
    "MODEL.ROI_MASK_HEAD.POSTPROCESS_MASKS": "masks are always pasted into the image",
    "MODEL.ROI_MASK_HEAD.MLP_HEAD_DIM": "mask heads have no fully connected layer",
    "MODEL.ROI_KEYPOINT_HEAD.MLP_HEAD_DIM": "keypoint heads have no such layer",
    "MODEL.RETINANET.STRADDLE_THRESH": "RetinaNet always trains on all anchors",
    "PATHS_CATALOG": "datasets are built in or defined in DATASETS.CATALOG",
}
# Removed values of keys, in lower case.
VALUES = {("SOLVER.OPTIMIZER", "muon"), ("TEST.NMS.METHOD", "fusion")}


def is_ignored(name: str, value: Any, source: str, stored: bool = False) -> bool:
    """Return True for a key or value of an earlier version that is ignored.

    Args:
        name, value: a key and its value.
        source: the file, for the error.
        stored: the config is stored with trained weights. Removed settings of their training do
            not change what they detect, and are ignored.

    Raises:
        ConfigError: the value of a removed key had an effect, or the value was removed.
    """
    if name in NO_EFFECT:
        logger.info("%s: %s has no effect in detlite: %s", source, name, NO_EFFECT[name])
        return True
    off = KEYS.get(name)
    plain = tuple(value) if isinstance(value, list) else value  # YAML has no tuples
    is_off = plain == off or str(value) == str(off)
    is_removed = (name in KEYS and not is_off) or (name, str(value).lower()) in VALUES
    detects_others = name.startswith(_PREDICTION) and name not in _SAME_OBJECTS
    if is_removed and (detects_others or not stored):
        raise ConfigError(f"{source}: {name} {value}: removed, CHANGELOG.md says why")
    return is_removed or name in KEYS
