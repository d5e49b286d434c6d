"""Pickles (.pkl) of weights and proposals, read without running anything that they hold.

numpy's own functions trust a pickle: a dtype or a buffer that it makes up can point anywhere in
memory. So arrays are put together here, of numbers and text alone, and what a pickle may call are
objects without attributes, which it cannot change.
"""

from __future__ import annotations

import collections
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch


class RefusedPickleError(ValueError):
    """A pickle that asks for more than arrays and plain containers."""


class _DType:
    """A dtype, and its byte order once the pickle has told it."""

    __slots__ = ("code", "order")

    def __init__(self, code: str) -> None:
        self.code, self.order = code, "="

    def __setstate__(self, state: Any) -> None:
        # version, byte order, then what only structured dtypes have, sizes and flags
        if not (isinstance(state, tuple) and len(state) >= 5 and state[1] in ("<", ">", "|", "=")):
            raise RefusedPickleError("numpy.dtype with an unknown state")
        if any(part is not None for part in state[2:5]):
            raise RefusedPickleError("numpy.dtype with fields")
        self.order = state[1]


class _Array(np.ndarray):
    """An array that is filled by the state that follows it in the pickle."""

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        checked: Any = (1, shape, _checked(dtype), bool(fortran), bytes(_bytes(data)))
        super().__setstate__(checked)


class _MakeDType:
    __slots__ = ()

    def __call__(self, code: Any, align: Any = False, copy: Any = True) -> _DType:
        # bool, integers, floats, complex numbers, and text
        if not isinstance(code, str) or not re.fullmatch(r"[biufcSU]\d+", code):
            raise RefusedPickleError(f"numpy.dtype of {code!r}")
        return _DType(code)


class _Reconstruct:
    __slots__ = ()

    def __call__(self, kind: Any, shape: Any, code: Any) -> _Array:
        return _Array((0,), dtype=np.uint8)


class _FromBuffer:
    __slots__ = ()

    def __call__(self, data: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray:
        kind = _checked(dtype)
        array = np.frombuffer(_bytes(data), kind).reshape(shape, order=order)
        return array.astype(kind.newbyteorder("="))  # as numpy's own __setstate__


class _Scalar:
    __slots__ = ()

    def __call__(self, dtype: Any, data: Any) -> Any:
        return np.frombuffer(_bytes(data), _checked(dtype), count=1)[0]


class _Encode:
    """Python 2's byte strings, which protocol 2 spells as text to be encoded."""

    __slots__ = ()

    def __call__(self, text: str, encoding: str = "latin1") -> bytes:
        if encoding != "latin1":
            raise RefusedPickleError(f"_codecs.encode to {encoding!r}")
        return text.encode(encoding)


# All that arrays, numbers and ordered dicts need. numpy 2 calls its core `_core`.
_ADMITTED: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("_codecs", "encode"): _Encode(),
    ("numpy", "ndarray"): object(),  # to be passed on but not called
    ("numpy", "dtype"): _MakeDType(),
    **{
        (f"numpy.{core}.{module}", name): made
        for core in ("core", "_core")
        for module, name, made in (
            ("multiarray", "_reconstruct", _Reconstruct()),
            ("multiarray", "scalar", _Scalar()),
            ("numeric", "_frombuffer", _FromBuffer()),
        )
    },
}


def _checked(dtype: Any) -> np.dtype[Any]:
    if not isinstance(dtype, _DType):
        raise RefusedPickleError(f"array of {type(dtype).__name__}")
    return np.dtype(dtype.order + dtype.code)


def _bytes(data: Any) -> bytes | bytearray:
    if isinstance(data, str):  # the byte strings of Python 2
        return data.encode("latin1")
    if not isinstance(data, (bytes, bytearray)):
        raise RefusedPickleError(f"array of {type(data).__name__}")
    return data


# The one in C takes memory by the largest number that a pickle gives to an object: gigabytes for a
# single damaged byte.
class _Unpickler(pickle._Unpickler):
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


class Inert:
    """What stands for an object that is not needed: it takes all arguments and keeps none."""

    __slots__ = ()

    def __new__(cls, *_args: Any) -> Inert:
        return super().__new__(cls)

    def __init__(self, *_args: Any) -> None: ...

    def __setstate__(self, _state: Any) -> None: ...


# The log that mmengine keeps beside weights, numbers in arrays. `getattr` names its methods.
_LOG = re.compile(
    r"mmengine\.logging\.\w+\.HistoryBuffer|numpy\.(ndarray|dtype|dtypes\.\w+)|builtins\.getattr"
    r"|numpy\._?core\.(multiarray\.(_reconstruct|scalar)|numeric\._frombuffer)|_codecs\.encode"
)


def load_weights_only(path: Path) -> Any:
    """What `torch.load(weights_only=True)` reads, with `Inert` in the place of mmengine's log.

    Raises:
        Exception: whatever torch raises, among it an UnpicklingError that names what it refuses.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        if not zipfile.is_zipfile(path):
            raise
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        if not any(name.startswith("mmengine.") for name in names):
            raise
        inert: Any = [(Inert, name) for name in names if _LOG.fullmatch(name)]
        with torch.serialization.safe_globals(inert):
            return torch.load(path, map_location="cpu", weights_only=True)
