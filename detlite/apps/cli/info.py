"""Commands that describe a config or the machine: config, doctor."""

from argparse import Namespace

from detlite.errors import ConfigError

from . import options


@options.command(
    options.config("the default values"),
    options.option("--keys", "START", "only keys whose names start like this, such as SOLVER", ""),
    options.OVERRIDES,
)  # fmt: skip
def config(args: Namespace) -> int:
    """Print the keys of a config, with their values and what they mean, also those of extensions.

        detlite config --config coco/mask_rcnn_R_50_FPN_1x.yaml --keys SOLVER
        detlite config --config cells.yaml MODEL.MASK_ON True > all_keys.yaml

    The output is a config, too.
    """
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


@options.command()
def doctor(args: Namespace) -> int:
    """List what is installed, test every operator, and explain how to fix problems.

        detlite doctor

    Each operator runs on each device with a small input, and its result is compared with
    torchvision's or a known one. The report on the system is torch's (torch.utils.collect_env).

    Exit status: 0; 1 if an operator computes a wrong result.
    """
    from detlite.apps.doctor.machine import describe, devices, find_problems
    from detlite.apps.doctor.operator_checks import print_checks

    print(describe())
    wrong = sum(map(print_checks, devices()))
    problems = find_problems()
    if wrong:
        problems.append(
            f"{wrong} operators are wrong: rebuild detlite for this torch (pip install "
            "--no-build-isolation --force-reinstall --no-deps), and if that does not help, report "
            "it with the output above"
        )
    lines = [f"problem: {problem}" for problem in problems] or ["no problems found"]
    print("", *lines, sep="\n")
    return 1 if wrong else 0
