"""Count the parameters, operations and activations of a model.

    detlite analyze --config coco/mask_rcnn_R_50_FPN_1x.yaml
    detlite analyze --config cells.yaml --size 1024 1360 --depth 3 MODEL.MASK_ON True

The counts are for one image with the maximum number of proposals and detections of the config.
"""

from argparse import Namespace

from detlite.apps.cli.options import OVERRIDES, config, option
from detlite.errors import ConfigError

OPTIONS = (
    config(None),
    option("--size", ("H", "W"), "size of the original image, which is resized as in evaluation "
           "(default: 480 640)", type=int, nargs=2),
    option("--depth", None, "depth of the listed modules", 2, minimum=0),
    OVERRIDES,
)  # fmt: skip


def run(args: Namespace) -> int:
    from detlite.apps.doctor.flops import cost_table, count_cost
    from detlite.config import load_config

    height, width = args.size or (480, 640)
    if min(height, width) < 1:
        raise ConfigError(f"--size {height} {width}: both must be at least 1")
    cfg = load_config(args.config, args.overrides)
    print(cost_table(count_cost(cfg, (height, width), args.depth)))
    return 0
