"""Description of a framework whose checkpoints are converted."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

StateDict = dict[str, Tensor]
RawStateDict = Mapping[str, Any]  # tensors or arrays, with the names of their framework
ConfigValues = dict[str, Any]  # config keys and values
RenameRules = list[tuple[str, str]]  # (pattern, replacement), all applied in order


@dataclass(frozen=True)
class CheckpointSource:
    """A framework, with the functions that convert its checkpoints.

    Attributes:
        name: in messages and on the command line.
        convention: its key in `detlite.conventions.CONVENTIONS`; "" if it has classifiers only.
        recognise: names -> True if a file with these names is from this framework.
        rules: rename its weights to detlite's names.
        configure: (state, raw, path, content) -> config for a converted state dict, in two parts:
            what follows from the shapes and from the framework's defaults, and what the file says
            itself. Both are empty if the file does not determine the model. `content` has the
            entries next to the state dict. Raises ValueError for models that detlite does not have.
        unused: pattern for names of weights that no model of detlite uses.
        adapt: (state, raw) -> state, changes the layout of a renamed state dict, possibly in place.
            `raw` has the original names.
        class_names: content -> names of the labels 1, 2, ...; empty if unknown.
    """

    name: str
    convention: str
    recognise: Callable[[Collection[str]], bool]
    rules: RenameRules
    configure: Callable[[StateDict, RawStateDict, Path, Any], tuple[ConfigValues, ConfigValues]]
    unused: str = r"(?!)"  # matches nothing
    adapt: Callable[[StateDict, RawStateDict], StateDict] = lambda state, _raw: state
    class_names: Callable[[Any], Sequence[str]] = lambda _content: ()

    def rename(self, raw: RawStateDict) -> dict[str, Any]:
        """Return the weights that detlite uses, by its names."""
        unused = re.compile(self.unused)
        return {
            rename(name, self.rules): value
            for name, value in raw.items()
            if not unused.search(name)
        }


def names_match(pattern: str) -> Callable[[Collection[str]], bool]:
    """Build a `recognise` that is True if `pattern` matches the start of a name."""
    compiled = re.compile(pattern)
    return lambda names: any(map(compiled.match, names))


def pixel_config(mean: Sequence[float], std: Sequence[float], rgb: bool) -> ConfigValues:
    """Return the INPUT keys of a model with the statistics of pixels in 0..255, RGB or BGR."""
    scale = 255 if rgb else 1
    return {
        "INPUT.TO_BGR255": not rgb,
        "INPUT.PIXEL_MEAN": [value / scale for value in mean],
        "INPUT.PIXEL_STD": [value / scale for value in std],
    }


def rename(name: str, rules: RenameRules) -> str:
    """Apply all rules to a name."""
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def number_levels_from_zero(state: StateDict) -> StateDict:
    """Renumber the pyramid levels so that the finest, which may be P3, is number 0."""
    level = re.compile(r"^(backbone\.neck\.(?:lateral|output)\.)(\d+)")
    first = min((int(match[2]) for match in map(level.match, state) if match), default=0)
    return {
        level.sub(lambda match: f"{match[1]}{int(match[2]) - first}", name): value
        for name, value in state.items()
    }
