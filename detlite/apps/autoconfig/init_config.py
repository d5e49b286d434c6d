"""The config file that `detlite init` writes for a dataset."""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from detlite.apps.dataset_formats import find_sets
from detlite.config import load_config
from detlite.config.loading import flatten
from detlite.data import explain_dead_loader
from detlite.data.datasets.build import build_test_datasets, build_train_dataset, findings_of
from detlite.data.images.pixels import build_image_options
from detlite.threads import limit_threads

from .configs import derive_config
from .dataset_facts import BASE, Choice
from .yaml_text import config_text, dataset_choices


def init_config(options: Namespace, log: Callable[[str], None]) -> str:
    """Return the text of a config for a dataset, with the reason for each key.

    Args:
        options: those of `detlite init`.
        log: called with texts about how the data were read, and what training will not use.

    Raises:
        CheckpointError, ConfigError, DataError: see `find_sets` and `derive_config`.
    """
    weights, overrides = options.weights, options.overrides
    upright = build_image_options(load_config(None, overrides)).exif_orientation
    sets, text = find_sets(
        options.data, options.val, options.images, options.annotations, options.masks,
        options.skip_bad, upright, options.single_class, options.group_by,
    )  # fmt: skip
    log(text)
    fixed = dataset_choices(sets, text)
    if weights:
        weights = str(Path(weights).absolute()) if Path(weights).is_file() else weights
        fixed += [
            Choice("MODEL.WEIGHT", weights, "the other keys of MODEL and INPUT are theirs"),
            Choice("MODEL.REINIT_HEADS", True, "keep the heads of categories with the same name"),
        ]
    if options.minutes:
        fixed.append(Choice("SOLVER.MAX_MINUTES", options.minutes))
    if weights or options.minutes:
        limit_threads()
    opts = [word for choice in fixed for word in (choice.key, choice.value)] + overrides
    with explain_dead_loader():
        cfg, choices, facts = derive_config(opts, weights, log)
    # What training will skip, reinterpret or switch off because of the data.
    parts = build_train_dataset(cfg).parts
    log(findings_of([*parts, *build_test_datasets(cfg)], parts))
    reasons = {choice.key: choice.reason for choice in fixed}
    reasons |= dict.fromkeys(overrides[::2], "given on the command line")
    for choice in choices:
        reasons.pop(choice.key, None)  # the choices are the last keys of the file
        reasons[choice.key] = choice.reason
    values, keys = dict(flatten(cfg)), [*reasons]
    if weights:  # without a base
        defaults = dict(flatten(load_config(None)))
        keys = [key for key in values if values[key] != defaults[key]]
    written = [Choice(key, values[key], reasons.get(key, "")) for key in keys if key in values]
    return config_text(written, facts.summary, "" if weights else BASE)
