"""Keys of earlier versions and of maskrcnn-benchmark that have no effect.

Checkpoints and output folders contain complete configs, also the keys that were off. A removed key
is therefore ignored if it is off, or if it belongs to the training of stored weights, and an error
otherwise.
"""

import logging
from typing import Any

from detlite.errors import ConfigError

logger = logging.getLogger(__name__)

_PREDICTION = ("TEST.", "MODEL.FBNET.")  # sections that change what stored weights detect

# Each removed key with the only value that remains, which turned it off.
OFF: dict[str, Any] = {
    "INPUT.EARLY_FRACTION": 0.0,
    "MODEL.ROI_HEADS.DYNAMIC": False,
    "MODEL.ROI_MASK_HEAD.LOSS": "bce",
    "INPUT.MOSAIC_PROB": 0.0,
    "INPUT.QUARTER_TURNS": False,
    "INPUT.SCALE_JITTER": (),
    "SOLVER.BACKBONE_LR_FACTOR": 1.0,
    "TEST.BOX_FROM_MASK": 0.0,
    "TEST.MASK_CONFIDENCE": 0.0,
    "TEST.AREA_LIMITS": (),
    "DATALOADER.SHARD_SHUFFLE": 2000,
    "MODEL.ROI_BOX_HEAD.LOSS": "cross_entropy",
    "MODEL.ROI_BOX_HEAD.CLASS_WEIGHTS": (),
    "TEST.NMS.SIGMA": 0.5,
    "TEST.NMS.MIN_SCORE": 0.001,
    "TEST.NMS.VOTE_THRESH": 0.8,
    "TEST.EXPECTED_RESULTS_SIGMA_TOL": 4.0,
    "INPUT.TILE_OVERLAP": 0.2,
    "TEST.TILE_OVERLAP": 0.2,
    "SOLVER.AUTO_SCALE_LR": False,
    "SOLVER.BACKBONE_FREEZE_ITERS": 0,
    "SOLVER.MINUTES_INCLUDE_TEST": False,
    "SOLVER.MAX_SKIPPED_STEPS": 0,
    "MODEL.FBNET.SCALE_FACTOR": 1.0,
    "MODEL.FBNET.RPN_HEAD_BLOCKS": 0,
    "MODEL.FBNET.DET_HEAD_BLOCKS": (),
    "MODEL.FBNET.DET_HEAD_STRIDE": 0,
    "MODEL.FBNET.MASK_HEAD_BLOCKS": (),
    "MODEL.FBNET.MASK_HEAD_STRIDE": 0,
    "MODEL.FBNET.KPTS_HEAD_BLOCKS": (),
    "MODEL.FBNET.KPTS_HEAD_STRIDE": 0,
    "MODEL.FBNET.RPN_BN_TYPE": "",
    "MODEL.FBNET.DW_CONV_SKIP_BN": True,
    "MODEL.FBNET.DW_CONV_SKIP_RELU": True,
    "MODEL.FBNET.MASK_HEAD_LAST_SCALE": 0.0,
    "MODEL.FBNET.KPTS_HEAD_LAST_SCALE": 0.0,
    "DATASETS.TRAIN_SHARES": (),
    "DATASETS.UNLABELED": "",
}
# Keys that have no effect with any value, and why.
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


def is_ignored(name: str, value: Any, source: str, stored: bool = False) -> bool:
    """Return True for a key of an earlier version that is ignored.

    Args:
        name, value: a key and its value.
        source: the file, for the error.
        stored: the config is stored with trained weights. Removed settings of their training do
            not change what they detect, and are ignored.

    Raises:
        ConfigError: the value of a removed key had an effect.
    """
    if name in NO_EFFECT:
        logger.info("%s: %s has no effect in detlite: %s", source, name, NO_EFFECT[name])
        return True
    if name not in OFF:
        return False
    plain = tuple(value) if isinstance(value, list) else value  # YAML has no tuples
    is_on = plain != OFF[name] and str(value) != str(OFF[name])
    # Without mask scores, which `init` chose, and area limits, the same objects are detected.
    same_objects = "TEST.MASK_CONFIDENCE", "TEST.AREA_LIMITS"
    if is_on and not (stored and (name in same_objects or not name.startswith(_PREDICTION))):
        raise ConfigError(
            f"{source}: {name} {value}: this key was removed, and only {OFF[name]!r} is possible. "
            "Remove it"
        )
    return True
