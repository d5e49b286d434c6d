"""Choose a model and an image size that can be trained in a number of minutes.

Of `candidates`, from the largest to the fastest, the first one is chosen whose timed steps allow
half of the steps that the dataset calls for (`training_rules.recommended_steps`), else the last
one. Images shrink before the model does: in 5 and in 15 minutes, more epochs on smaller images gave
the same or better results (docs/recipes.md).
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from detlite.config import ConfigError
from detlite.threads import OtherPrograms

from .dataset_facts import NO_VALUES, Choice, DatasetFacts, Values, backbone_is_fixed
from .rules import choose
from .training_rules import recommended_steps

# Seconds after which only the last candidate is still timed.
MAX_TIMING_SECONDS = 60.0
# (use the small model, factor on the image size)
CANDIDATES = ((False, 1.0), (False, 0.75), (True, 0.75), (True, 0.5))
MIN_FRACTION = 0.5  # of the recommended steps

_logger = logging.getLogger(__name__)

# Returns the seconds of a training step.
StepTimer = Callable[[DatasetFacts, Sequence[Choice]], float]


def candidates(
    facts: DatasetFacts, values: Values = NO_VALUES
) -> Iterator[tuple[str, DatasetFacts]]:
    """Yield candidates with their descriptions, from the largest to the fastest."""
    # The small model has no other pretrained weights than the installed ones.
    has_small = facts.machine.pretrained and not backbone_is_fixed(values)
    fixed_size = not values.keys().isdisjoint({"INPUT.MIN_SIZE_TRAIN", "INPUT.MIN_SIZE_TEST"})
    models = [(small and has_small, 1.0 if fixed_size else shrink) for small, shrink in CANDIDATES]
    for small, shrink in dict.fromkeys(models):
        name = "the small model" if small else "the model"
        size = "" if shrink == 1 else f" with images of {shrink:g} times their side"
        yield name + size, replace(facts, small=small, shrink=shrink)


def fit_to_minutes(
    facts: DatasetFacts,
    minutes: float,
    step_timer: StepTimer,
    clock: Callable[[], float] = time.perf_counter,
    values: Values = NO_VALUES,
    progress: Callable[[str], None] = _logger.info,
) -> DatasetFacts:
    """Return facts from which `choose` makes a config for `minutes` of training.

    `values` are keys that are already decided; `progress` gets a line of text after each candidate.
    Raises ConfigError if no candidate fits into the memory of the GPU.
    """
    start, others = clock(), OtherPrograms()
    results: list[str] = []
    chosen: DatasetFacts | None = None
    described = list(candidates(facts, values))
    for name, candidate in described:
        is_last = name == described[-1][0]
        if chosen and not is_last and clock() - start > MAX_TIMING_SECONDS:
            continue
        choices = choose(candidate, values)
        try:
            seconds = step_timer(candidate, choices)
        except torch.OutOfMemoryError:
            results.append(f"{name}: too large for the GPU memory")
            progress(results[-1])
            continue
        chosen = replace(candidate, step_seconds=seconds)
        all_values = {choice.key: choice.value for choice in choices} | dict(values)
        recommended, _ = recommended_steps(chosen, all_values)
        possible = int(minutes * 60 / seconds)
        results.append(f"{name}: {seconds:.2g} seconds per step, {possible} of {recommended} steps")
        progress(results[-1])
        if possible >= MIN_FRACTION * recommended:
            break
    if chosen is None:
        raise ConfigError(
            f"no model fits into the GPU memory ({'; '.join(results)}): stop other programs that "
            "use the GPU, or train on the CPU with CUDA_VISIBLE_DEVICES set to an empty value"
        )
    if not facts.machine.gpu and (problem := others.problem("training")):
        _logger.warning("%s", problem)
    timed = f"Timed on this machine, where half of the steps are enough: {'; '.join(results)}"
    return replace(chosen, minutes=(minutes, timed))
