"""Keys, values and commands that earlier versions had, with the records that show no gain.

Checkpoints and output folders contain complete configs, also the keys that were off. A removed key
is therefore ignored if it is off, or if it belongs to the training of stored weights, and an error
otherwise.
"""

from typing import Any

from detlite.errors import ConfigError

_SETTINGS = "benchmarks/results/recipes/settings_batch_1.md"

# Each removed key with the value that turned it off, and its record.
KEYS: dict[str, tuple[Any, str]] = {
    "INPUT.EARLY_FRACTION": (0.0, _SETTINGS),
    "MODEL.ROI_HEADS.DYNAMIC": (False, _SETTINGS),
    "MODEL.ROI_MASK_HEAD.LOSS": ("bce", "benchmarks/results/recipes/schedule_free.md"),
    "INPUT.MOSAIC_PROB": (0.0, _SETTINGS),
    "INPUT.QUARTER_TURNS": (False, _SETTINGS),
    "INPUT.SCALE_JITTER": ((), _SETTINGS),
    "SOLVER.BACKBONE_LR_FACTOR": (1.0, "benchmarks/results/recipes/settings_batch_4.md"),
}
# Options of removed keys. They had no effect without these keys and are ignored.
OPTIONS = {
    "INPUT.CROP_SIZE",
    "INPUT.EARLY_SCALE",
    "MODEL.ROI_HEADS.DYNAMIC_BETA_RANK",
    "MODEL.ROI_HEADS.DYNAMIC_IOU_RANK",
    "MODEL.ROI_HEADS.DYNAMIC_PERIOD",
}
# Removed values of keys, in lower case, and their records.
VALUES = {
    ("SOLVER.OPTIMIZER", "muon"): _SETTINGS,
    ("TEST.NMS.METHOD", "fusion"): "benchmarks/results/models/test_time_options.md",
}
# Removed commands, and what to use instead.
COMMANDS = {
    "benchmark": "run `python -m benchmarks` from a clone",
    "replay": "the error of a loss that is not finite names its images, and the checkpoint before",
}


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
    off, record = KEYS.get(name, (value, ""))
    if value == off or str(value) == str(off):
        record = VALUES.get((name, str(value).lower()), "")
        name_and_value = f"{name} {value}"
    else:
        name_and_value = name
    if record and not (stored and not name.startswith("TEST.")):
        raise ConfigError(f"{source}: {name_and_value}: removed, it gained nothing: {record}")
    return bool(record) or name in KEYS or name in OPTIONS
