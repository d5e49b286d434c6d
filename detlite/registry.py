"""A named table of builders: one for each extension point."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from typing import Generic, TypeVar

from detlite.config import ConfigError

T = TypeVar("T")

# Packages that are imported, and register their parts, when a name that begins so is asked for.
_ON_DEMAND = {"FBNet": "detlite.modeling.backbone.fbnet"}


class Registry(Generic[T]):
    """Builders by name. `@BACKBONES.register("name")` adds one; a name is taken once."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._builders: dict[str, T] = {}

    def register(self, *names: str) -> Callable[[T], T]:
        """Decorator that adds a builder under one or more names."""

        def add(builder: T) -> T:
            for name in names:
                if name in self._builders:
                    raise ValueError(f"{self.what} {name!r} is registered already")
                self._builders[name] = builder
            return builder

        return add

    def get(self, name: str, key: str) -> T:
        """The builder called `name`; `key` is the config key that named it, for the error."""
        if package := _ON_DEMAND.get(name.partition(".")[0]):
            importlib.import_module(package)
        if name in self._builders:
            return self._builders[name]
        close = difflib.get_close_matches(name, self._builders, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ConfigError(
            f"{key}: no {self.what} is called {name!r}; {hint}"
            f"known: {', '.join(sorted(self._builders))}. Your own file is registered by naming "
            "it in IMPORTS"
        )
