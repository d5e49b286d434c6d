"""What every framework whose files are converted has to say about them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

State = dict[str, Tensor]
Entries = Mapping[str, Any]  # tensors or arrays, by their framework's names
Config = dict[str, Any]  # config keys and values
Rules = list[tuple[str, str]]  # (pattern, replacement): all are applied to a name, in order


@dataclass(frozen=True)
class Source:
    """A framework, and how its files become ours.

    Attributes:
        name: what it is called in messages and on the command line.
        convention: the name of its convention, one of `detlite.conventions.CONVENTIONS`; "" where
            its files hold no detectors.
        recognise: whether a file with entries of these names is its own.
        rules: its names -> ours.
        configure: (state, entries, path, content) -> the config that an adapted state dict needs,
            `content` being all that the file holds; empty where nothing says it. Raises ValueError
            for a model that we do not have.
        unused: a pattern for names of entries that no model of ours has.
        adapt: (state, entries) -> state. Changes the layout of a state dict by our names, in place
            or not. `entries` are those of the file, by its own names.
        class_names: content -> names of the labels 1, 2, ...; empty where the file says none.
    """

    name: str
    convention: str
    recognise: Callable[[Collection[str]], bool]
    rules: Rules
    configure: Callable[[State, Entries, Path, Any], Config]
    unused: str = r"(?!)"  # none
    adapt: Callable[[State, Entries], State] = lambda state, _entries: state
    class_names: Callable[[Any], Sequence[str]] = lambda _content: ()

    def rename(self, entries: Entries) -> dict[str, Any]:
        """The entries that we use, by our names."""
        unused = re.compile(self.unused)
        return {
            rename(name, self.rules): value
            for name, value in entries.items()
            if not unused.search(name)
        }


def rename(name: str, rules: Rules) -> str:
    """The name after all rules."""
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def levels_from_0(state: State) -> State:
    """Numbers a pyramid's levels from 0, also where the finest is P3."""
    level = re.compile(r"^(backbone\.neck\.(?:lateral|output)\.)(\d+)")
    first = min((int(match[2]) for match in map(level.match, state) if match), default=0)
    return {
        level.sub(lambda match: f"{match[1]}{int(match[2]) - first}", name): value
        for name, value in state.items()
    }
