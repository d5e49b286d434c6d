"""Derive config keys and their reasons from statistics of a dataset and the machine.

A rule is a function of `DatasetFacts` and the values chosen so far, which yields choices. Other
keys keep their values in the config `DatasetFacts.base`.
"""

from collections.abc import Sequence
from typing import Any

from . import data_rules as data
from . import model_rules as model
from . import training_rules as training
from .anchors import anchors
from .dataset_facts import ADAPTING_KEYS, NO_VALUES, Choice, DatasetFacts, Rule, Values

_FIRST: tuple[Rule, ...] = (
    training.precision, data.bad_annotations, data.orientation, data.background, data.min_area,
)  # fmt: skip
_SOLVER: tuple[Rule, ...] = (
    training.batch_size, training.optimizer, training.learning_rate, training.schedule,
    training.rare_categories, training.workers,
)  # fmt: skip
RULES: tuple[Rule, ...] = (
    *_FIRST, data.tiles, data.image_size, data.augmentation, model.initial_weights,
    data.image_values, model.heads, model.box_passes, model.widths,
    anchors, model.object_counts, *_SOLVER,
)  # fmt: skip
# Rules for training a given model.
TRAINING_RULES: tuple[Rule, ...] = (*_FIRST, data.image_values, *_SOLVER)


def choose(
    facts: DatasetFacts, values: Values = NO_VALUES, rules: Sequence[Rule] = RULES
) -> list[Choice]:
    """Apply the rules, and return the choices in the order of the config file.

    Args:
        facts: facts about the data and the machine.
        values: keys that are already decided. Other choices take them into account, and a choice
            of the same value is kept for its reason.
    """
    choices: dict[str, Choice] = {}
    input_facts, used = facts, dict[str, Any]()
    for rule in rules:
        all_values = {key: choice.value for key, choice in choices.items()} | dict(values)
        if (adapting := {key: all_values.get(key) for key in ADAPTING_KEYS}) != used:
            input_facts, used = facts.adapted(all_values), adapting
        choices |= {
            choice.key: choice
            for choice in rule(input_facts, all_values)
            if values.get(choice.key, choice.value) == choice.value
        }
    return list(choices.values())
