"""Keys and values of earlier versions and of maskrcnn-benchmark that have no effect.

Checkpoints and output folders contain complete configs, also the keys that were off. A removed key
is therefore ignored if it is off, or if it belongs to the training of stored weights, and an error
otherwise.
"""

import logging
from typing import Any

from detlite.errors import ConfigError

logger = logging.getLogger(__name__)

_NO_GAIN = "it gained nothing: benchmarks/results/recipes/removed.md"
_NO_SHARDS = (
    "name a COCO file and its image folder, which may be URLs, also of images in an archive: "
    "tar://images::https://host/train.tar"
)
_PREDICTION = ("TEST.", "MODEL.FBNET.")  # sections that change what stored weights detect

# Why keys were removed or what replaces them, and each key with the only value that remains, which
# turned it off.
_REMOVED: dict[str, dict[str, Any]] = {
    _NO_GAIN: {
        "INPUT.EARLY_FRACTION": 0.0,
        "INPUT.MOSAIC_PROB": 0.0,
        "INPUT.QUARTER_TURNS": False,
        "INPUT.SCALE_JITTER": (),
        "MODEL.ROI_HEADS.DYNAMIC": False,
        "MODEL.ROI_MASK_HEAD.LOSS": "bce",
        "SOLVER.BACKBONE_LR_FACTOR": 1.0,
        "TEST.BOX_FROM_MASK": 0.0,
    },
    "only this value remains": {
        "INPUT.TILE_OVERLAP": 0.2,
        "MODEL.FBNET.DW_CONV_SKIP_BN": True,
        "MODEL.FBNET.DW_CONV_SKIP_RELU": True,
        "MODEL.FBNET.KPTS_HEAD_LAST_SCALE": 0.0,
        "MODEL.FBNET.MASK_HEAD_LAST_SCALE": 0.0,
        "MODEL.FBNET.RPN_BN_TYPE": "",
        "MODEL.ROI_BOX_HEAD.LOSS": "cross_entropy",
        "TEST.NMS.MIN_SCORE": 0.001,
        "TEST.NMS.SIGMA": 0.5,
        "TEST.NMS.VOTE_THRESH": 0.8,
        "TEST.TILE_OVERLAP": 0.2,
    },
    "only this value remains: change the deviations": {"TEST.EXPECTED_RESULTS_SIGMA_TOL": 4.0},
    "describe the model in MODEL.FBNET.ARCH_DEF": {
        "MODEL.FBNET.SCALE_FACTOR": 1.0,
        **{f"MODEL.FBNET.{part}_HEAD_BLOCKS": () for part in ("DET", "MASK", "KPTS")},
        **{f"MODEL.FBNET.{part}_HEAD_STRIDE": 0 for part in ("DET", "MASK", "KPTS")},
        "MODEL.FBNET.RPN_HEAD_BLOCKS": 0,
    },
    "masks are ranked by the scores of their boxes": {"TEST.MASK_CONFIDENCE": 0.0},
    "pass other limits to pycocotools: COCOeval(...).params.areaRng": {"TEST.AREA_LIMITS": ()},
    f"shards were removed: {_NO_SHARDS}": {"DATALOADER.SHARD_SHUFFLE": 2000},
    "repeat images: DATALOADER.REPEAT_THRESHOLD": {"MODEL.ROI_BOX_HEAD.CLASS_WEIGHTS": ()},
    "set SOLVER.BASE_LR for SOLVER.IMS_PER_BATCH": {"SOLVER.AUTO_SCALE_LR": False},
    "train two runs: the first with MODEL.BACKBONE.FREEZE_CONV_BODY_AT 5, the second with its "
    "checkpoint as MODEL.WEIGHT": {"SOLVER.BACKBONE_FREEZE_ITERS": 0},
    "set a smaller SOLVER.MAX_MINUTES": {"SOLVER.MINUTES_INCLUDE_TEST": False},
    "resume from the checkpoint before the loss that is not finite, which names its images": {
        "SOLVER.MAX_SKIPPED_STEPS": 0
    },
    "set MODEL.RESNETS.NORM BN to train the batch norm of timm": {"MODEL.TIMM.FROZEN_NORM": True},
    "train on one COCO file that contains images more than once": {"DATASETS.TRAIN_SHARES": ()},
    f"{_NO_GAIN}. Label the images: `detlite predict --format coco` writes labels to correct": {
        "DATASETS.UNLABELED": ""
    },
}
KEYS = {key: (off, reason) for reason, keys in _REMOVED.items() for key, off in keys.items()}
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
# Removed values of keys, in lower case, and why.
VALUES = {
    ("SOLVER.OPTIMIZER", "muon"): _NO_GAIN,
    ("TEST.NMS.METHOD", "fusion"): _NO_GAIN,
}
# Removed types of entries in DATASETS.CATALOG, and what to use instead.
DATASET_TYPES = {"webdataset": _NO_SHARDS}


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
    off, reason = KEYS.get(name, (value, ""))
    plain = tuple(value) if isinstance(value, list) else value  # YAML has no tuples
    if plain == off or str(value) == str(off):
        reason = VALUES.get((name, str(value).lower()), "")
    # Without mask scores, which `init` chose, and area limits, the same objects are detected.
    same_objects = "TEST.MASK_CONFIDENCE", "TEST.AREA_LIMITS"
    detects_others = name.startswith(_PREDICTION) and name not in same_objects
    if reason and (detects_others or not stored):
        raise ConfigError(f"{source}: {name} {value}: removed, {reason}")
    return bool(reason) or name in KEYS
