"""Pickled weights (.pkl), read without running anything that they hold."""

from __future__ import annotations

import codecs
import collections
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy._core import multiarray, numeric


class RefusedPickleError(ValueError):
    """A pickle that asks for more than arrays and plain containers."""


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """Python 2's byte strings, which protocol 2 spells as text to be encoded."""
    if encoding != "latin1":
        raise RefusedPickleError(f"_codecs.encode to {encoding!r}")
    return codecs.encode(text, encoding)


# All that arrays, numbers and ordered dicts need. numpy 2 calls its core `_core`.
_ADMITTED: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("_codecs", "encode"): _encode,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    **{
        (f"numpy.{core}.{module.__name__.rpartition('.')[2]}", name): getattr(module, name)
        for core in ("core", "_core")
        for module, name in (
            (multiarray, "_reconstruct"),
            (multiarray, "scalar"),
            (numeric, "_frombuffer"),
        )
    },
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise RefusedPickleError(f"{module}.{name}")
        return _ADMITTED[module, name]

    def persistent_load(self, pid: Any) -> NoReturn:
        raise RefusedPickleError("an object that is kept elsewhere")


def read_pickle(path: str | Path) -> Any:
    """The arrays, numbers, strings and containers that a pickle holds.

    Raises:
        OSError: a file that cannot be read.
        RefusedPickleError: anything else in it, by name; nothing of it was executed.
        Exception: whatever `pickle` raises for bytes that make no sense.
    """
    with Path(path).open("rb") as stream:
        # latin1: the arrays in pickles of Python 2 are byte strings.
        return _Unpickler(stream, encoding="latin1").load()
