"""Description of a framework whose checkpoints are converted."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

StateDict = dict[str, Tensor]
RawStateDict = Mapping[str, Any]  # tensors or arrays, with the names of their framework
ConfigValues = dict[str, Any]  # config keys and values
RenameRules = list[tuple[str, str]]  # (pattern, replacement), all applied in order
# Buffers of losses and metrics.
_NOT_LAYERS = r"(^|[._])(criterion|loss|metrics?|cls_weights|class_weights?)(\.|$)"


@dataclass(frozen=True)
class CheckpointSource:
    """A framework, with the functions that convert its checkpoints.

    Attributes:
        names: pattern that matches the sorted weight names of its files, one per line.
        rules: rename its weights to detlite's names.
        unused: pattern for names of weights that no model of detlite uses.
        adapt: (state, raw) -> state, changes the layout of a renamed state dict, possibly in place.
            `raw` has the original names.
        configure: (state, raw, path, content) -> config for a converted state dict, in two parts:
            values that follow from the shapes and from the framework's defaults, and values that
            the file states. Both are empty if the file does not determine the model. `content` are
            the entries next to the state dict. Raises ValueError for models that detlite lacks.
        convention: a key of `detlite.conventions.CONVENTIONS`; "" if it has classifiers only.
        class_names: content -> names of the labels 1, 2, ...; empty if unknown.
    """

    names: str = r"(?!)"
    rules: RenameRules = field(default_factory=list)
    unused: str = r"(?!)"
    adapt: Callable[[StateDict, RawStateDict], StateDict] = lambda state, _raw: state
    configure: Callable[[StateDict, RawStateDict, Path, Any], tuple[ConfigValues, ConfigValues]] = (
        lambda *_: ({}, {})
    )
    convention: str = ""
    class_names: Callable[[Any], Sequence[str]] = lambda _content: ()

    def rename(self, raw: RawStateDict) -> dict[str, Any]:
        """Return the weights that detlite uses, by its names."""
        unused = re.compile(f"{self.unused}|{_NOT_LAYERS}")
        used = {name: value for name, value in raw.items() if not unused.search(name)}
        return {rename(name, self.rules): value for name, value in used.items()}


def rename(name: str, rules: RenameRules) -> str:
    """Apply all rules to a name."""
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def section(name: str, **values: Any) -> ConfigValues:
    """Return the values of keys of a section, such as "MODEL.RPN", by their full names."""
    return {f"{name}.{key}": value for key, value in values.items()}


def pixel_config(mean: Sequence[float], std: Sequence[float], rgb: bool) -> ConfigValues:
    """Return the INPUT keys of a model with the statistics of pixels in 0..255, RGB or BGR."""
    scale = 255 if rgb else 1
    mean, std = ([value / scale for value in values] for values in (mean, std))
    return section("INPUT", TO_BGR255=not rgb, PIXEL_MEAN=mean, PIXEL_STD=std)
