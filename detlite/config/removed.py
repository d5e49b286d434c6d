"""Keys and values that earlier versions had, why they were removed, and what to use instead.

Checkpoints and output folders contain complete configs, also the keys that were off. A removed key
is therefore ignored if it is off, or if it belongs to the training of stored weights, and an error
otherwise.
"""

from typing import Any

from detlite.errors import ConfigError

_NO_GAIN = "it gained nothing: benchmarks/results/recipes/removed.md"
_NO_SHARDS = (
    "name a COCO file and its image folder, which may be URLs, also of images in an archive: "
    "tar://images::https://host/train.tar"
)

# Each removed key with the value that turned it off, and why it was removed or what replaces it.
KEYS: dict[str, tuple[Any, str]] = {
    "INPUT.EARLY_FRACTION": (0.0, _NO_GAIN),
    "MODEL.ROI_HEADS.DYNAMIC": (False, _NO_GAIN),
    "MODEL.ROI_MASK_HEAD.LOSS": ("bce", _NO_GAIN),
    "INPUT.MOSAIC_PROB": (0.0, _NO_GAIN),
    "INPUT.QUARTER_TURNS": (False, _NO_GAIN),
    "INPUT.SCALE_JITTER": ((), _NO_GAIN),
    "SOLVER.BACKBONE_LR_FACTOR": (1.0, _NO_GAIN),
    "TEST.BOX_FROM_MASK": (0.0, _NO_GAIN),
    "TEST.MASK_CONFIDENCE": (0.0, "masks are ranked by the scores of their boxes"),
    "DATALOADER.SHARD_SHUFFLE": (2000, f"shards were removed: {_NO_SHARDS}"),
    "DATASETS.TRAIN_SHARES": ((), "train on one COCO file that contains images more than once"),
    "DATASETS.UNLABELED": (
        "",
        f"{_NO_GAIN}. Label the images: `detlite predict --format coco` writes labels to correct",
    ),
}
# Options of removed keys. They had no effect without these keys and are ignored.
OPTIONS = {
    "INPUT.CROP_SIZE",
    "INPUT.EARLY_SCALE",
    "MODEL.ROI_HEADS.DYNAMIC_BETA_RANK",
    "MODEL.ROI_HEADS.DYNAMIC_IOU_RANK",
    "MODEL.ROI_HEADS.DYNAMIC_PERIOD",
}
# Removed values of keys, in lower case, and why.
VALUES = {
    ("SOLVER.OPTIMIZER", "muon"): _NO_GAIN,
    ("TEST.NMS.METHOD", "fusion"): _NO_GAIN,
}
# Removed types of entries in DATASETS.CATALOG, and what to use instead.
DATASET_TYPES = {"webdataset": _NO_SHARDS}


def is_removed(name: str, value: Any, source: str, stored: bool = False) -> bool:
    """Return True for a removed key or value that is ignored.

    Args:
        name, value: a key and its value.
        source: the file, for the error.
        stored: the config is stored with trained weights. Removed settings of their training do
            not change what they detect, and are ignored.

    Raises:
        ConfigError: the value of a removed key had an effect, or the value was removed.
    """
    off, reason = KEYS.get(name, (value, ""))
    if value == off or str(value) == str(off):
        reason = VALUES.get((name, str(value).lower()), "")
        name_and_value = f"{name} {value}"
    else:
        name_and_value = name
    # `init` chose mask scores, and without them the same objects are detected.
    detects_others = name.startswith("TEST.") and name != "TEST.MASK_CONFIDENCE"
    if reason and (detects_others or not stored):
        raise ConfigError(f"{source}: {name_and_value}: removed, {reason}")
    return bool(reason) or name in KEYS or name in OPTIONS
