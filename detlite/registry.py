"""Registries: named tables of builders, one for each extension point."""

import difflib
import filecmp
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from detlite.errors import ConfigError

T = TypeVar("T")

EXTENSION_MODULE = "extension:"  # start of the names of modules that are files of IMPORTS


class Registry(Generic[T]):
    """A table of builders (functions or classes) by name.

        BACKBONES: Registry[Callable[[CfgNode], Backbone]] = Registry("backbone")

        @BACKBONES.register("MyNet")
        def build_my_net(cfg): ...

        BACKBONES.get("MyNet", "MODEL.BACKBONE.CONV_BODY")

    Optional builders are imported on demand, so that a core package can offer what `detlite.apps`
    implements without importing it: with `on_demand={"onnx": "detlite.apps.export.onnx"}`,
    `get("onnx")` imports that module first, which registers the builder. An entry also covers names
    that continue with a dot: "FBNet" covers "FBNet.rpn_head".

    Args:
        kind: what the registry contains, for error messages: "backbone", "dataset type".
        on_demand: modules to import when a name is first requested.
    """

    def __init__(self, kind: str, on_demand: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        self._on_demand = dict(on_demand or {})
        self._builders: dict[str, T] = {}

    def register(self, *names: str) -> Callable[[T], T]:
        """Return a decorator that adds a builder under `names`; ValueError if one is taken.

        The same code may be imported twice: as a module, and as a file that IMPORTS lists.
        """

        def add(builder: T) -> T:
            for name in names:
                if name in self._builders and not _is_same_code(self._builders[name], builder):
                    raise ValueError(f"{self.kind} {name!r} is already registered")
                self._builders[name] = builder
            return builder

        return add

    def get(self, name: str, key: str = "") -> T:
        """Return the builder registered under `name`, which is the value of a config `key`.

        Raises:
            ConfigError: no builder has this name.
        """
        for requested in (name, name.partition(".")[0]):
            if name not in self._builders and requested in self._on_demand:
                importlib.import_module(self._on_demand[requested])
        if name in self._builders:
            return self._builders[name]
        close = difflib.get_close_matches(name, self.names(), n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ConfigError(
            f"{key + ': ' if key else ''}unknown {self.kind} {name!r}; {hint}"
            f"known: {', '.join(self.names())}. To use your own, list its file in IMPORTS"
        )

    def names(self) -> list[str]:
        """Return the registered names and those available on demand, sorted."""
        return sorted({*self._builders, *self._on_demand})

    def __contains__(self, name: object) -> bool:
        return name in self._builders or name in self._on_demand


def _is_same_code(first: object, second: object) -> bool:
    """Return True if two builders come from one file that was imported as two modules.

    Files of IMPORTS may have changed in between, see `detlite.config.extensions`.
    """
    modules = [getattr(builder, "__module__", "") for builder in (first, second)]
    names = {getattr(builder, "__qualname__", id(builder)) for builder in (first, second)}
    if modules[0] == modules[1] or len(names) > 1:
        return False
    versions = {module.partition("@")[0] for module in modules}
    if len(versions) == 1 and modules[0].startswith(EXTENSION_MODULE):
        return True
    files = [getattr(sys.modules.get(module), "__file__", None) or "" for module in modules]
    return all(map(os.path.isfile, files)) and filecmp.cmp(files[0], files[1], shallow=False)
