"""Print the keys of a config, with their values and what they mean, also those of extensions.

    detlite config --config coco/mask_rcnn_R_50_FPN_1x.yaml --keys SOLVER
    detlite config --config cells.yaml MODEL.MASK_ON True > all_keys.yaml

The output is a config, too.
"""

from argparse import Namespace

from detlite.apps.cli.options import OVERRIDES, config, option
from detlite.errors import ConfigError

OPTIONS = (
    config("the default values"),
    option("--keys", "START", "only keys whose names start like this, such as SOLVER", ""),
    OVERRIDES,
)


def run(args: Namespace) -> int:
    import math

    import yaml

    from detlite.config import load_config
    from detlite.config.loading import flatten, keys_of

    cfg = load_config(args.config, args.overrides)
    values = dict(flatten(cfg))
    keys = [key for name, key in keys_of(cfg).items() if name.startswith(args.keys)]
    if not keys:
        raise ConfigError(f"--keys {args.keys}: no config key starts like this")
    for key in keys:
        value = values[key.name]
        # Of a value in a list, because a plain value is followed by the end of a document.
        text = yaml.safe_dump([value], default_flow_style=True, width=math.inf, sort_keys=False)
        default = "" if value == key.default else f" (default: {key.default!r})"
        print(f"{key.name}: {text.strip()[1:-1]}  # {key.doc}{default}")
    return 0
