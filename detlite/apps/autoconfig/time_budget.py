"""A model and a size of pictures that can be trained in the minutes that there are.

The rule: of `candidates`, from the largest to the quickest, the first whose measured step lets the
minutes hold half of the steps that the set wants (`training_rules.steps_wanted`). Where none is
quick enough it is the last. Pictures become somewhat smaller before the model does: in 5 and in 15
minutes more rounds of smaller pictures reached as much as fewer of whole ones or somewhat more
(docs/recipes.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from detlite.config import ConfigError

from .dataset_facts import NOTHING_GIVEN, Choice, Chosen, Facts, gives_body
from .rules import choose
from .training_rules import steps_wanted

# Seconds after which no candidate is timed but the last.
TIMING = 60.0
# Whether the model is the small one, and by how much pictures shrink.
SIZES = ((False, 1.0), (False, 0.75), (True, 0.75), (True, 0.5))
# Of the steps that are wanted.
ENOUGH = 0.5

# Seconds of a training step of a config, by what it is made of.
Timer = Callable[[Facts, Sequence[Choice]], float]


def candidates(facts: Facts, given: Chosen = NOTHING_GIVEN) -> Iterator[tuple[str, Facts]]:
    """What is called how, from the largest to the quickest."""
    # The small model's body has no other weights than those that are installed.
    has_small = facts.machine.pretrained and not gives_body(given)
    fixed = not given.keys().isdisjoint({"INPUT.MIN_SIZE_TRAIN", "INPUT.MIN_SIZE_TEST"})
    models = [(small and has_small, 1.0 if fixed else shrink) for small, shrink in SIZES]
    for small, shrink in dict.fromkeys(models):
        name = "the small model" if small else "the model"
        size = "" if shrink == 1 else f", pictures of {shrink:g} of their side"
        yield name + size, replace(facts, small=small, shrink=shrink)


def fit(
    facts: Facts,
    minutes: float,
    seconds_of_step: Timer,
    clock: Callable[[], float] = time.perf_counter,
    given: Chosen = NOTHING_GIVEN,
) -> Facts:
    """The facts with which `choose` gives a config for so many minutes of training.

    Args:
        facts: of the data and the machine.
        minutes: above 0.
        seconds_of_step: measures a candidate.
        clock: by which timing ends after TIMING seconds.
        given: keys that are decided already.

    Raises:
        ConfigError: a GPU's memory is too small for all of them.
    """
    start, said = clock(), []
    found: Facts | None = None
    tried = list(candidates(facts, given))
    last = tried[-1][0]
    for name, one in tried:
        if found and name != last and clock() - start > TIMING:
            continue
        choices = choose(one, given)
        try:
            seconds = seconds_of_step(one, choices)
        except torch.OutOfMemoryError:
            said.append(f"{name}: too large for the GPU's memory")
            continue
        found = replace(one, step_seconds=seconds)
        wanted, _ = steps_wanted(found, {x.key: x.value for x in choices} | dict(given))
        have = int(minutes * 60 / seconds)
        said.append(f"{name}: {seconds:.2g} seconds a step, {have} steps of {wanted}")
        if have >= ENOUGH * wanted:
            break
    if found is None:
        raise ConfigError(
            f"no model fits in the GPU's memory ({'; '.join(said)}): end other programs that use "
            "it, or train on the CPU, with CUDA_VISIBLE_DEVICES set to nothing"
        )
    told = f"Timed on this machine, where half of the steps are enough: {'; '.join(said)}"
    return replace(found, minutes=(minutes, told))
