"""Read pickles (.pkl) of weights and proposals without executing their content.

numpy's own functions trust a pickle: a forged dtype or buffer can point anywhere in memory.
Therefore arrays are built here, from numbers and text only. The objects that a pickle may call have
no attributes that it could change.
"""

from __future__ import annotations

import collections
import pickle
import re
import secrets
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from .errors import RefusedPickleError
from .reading import open_file


class _DType:
    """A dtype; the pickle sets its byte order after creation."""

    __slots__ = ("code", "order")

    def __init__(self, code: str) -> None:
        self.code, self.order = code, "="

    def __setstate__(self, state: Any) -> None:
        # version, byte order, three fields of structured dtypes, sizes and flags
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


def _checked(dtype: Any) -> np.dtype[Any]:
    if not isinstance(dtype, _DType):
        raise RefusedPickleError(f"array of {type(dtype).__name__}")
    return np.dtype(dtype.order + dtype.code)


def _bytes(data: Any) -> bytes | bytearray:
    if isinstance(data, str):  # a byte string of Python 2
        return data.encode("latin1")
    if not isinstance(data, (bytes, bytearray)):
        raise RefusedPickleError(f"array of {type(data).__name__}")
    return data


def _without_attributes(function: Callable[..., Any]) -> Any:
    """Wrap a function in an object without attributes that a pickle could change."""
    members = {"__slots__": (), "__call__": staticmethod(function)}
    return type(function.__name__, (), members)()


@_without_attributes
def _make_dtype(code: Any, align: Any = False, copy: Any = True) -> _DType:
    # bool, integers, floats, complex numbers and text
    if not isinstance(code, str) or not re.fullmatch(r"[biufcSU]\d+", code):
        raise RefusedPickleError(f"numpy.dtype of {code!r}")
    return _DType(code)


@_without_attributes
def _reconstruct(kind: Any, shape: Any, code: Any) -> _Array:
    return _Array((0,), dtype=np.uint8)


@_without_attributes
def _frombuffer(data: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray:
    checked = _checked(dtype)
    array = np.frombuffer(_bytes(data), checked).reshape(shape, order=order)
    return array.astype(checked.newbyteorder("="))  # like numpy's own __setstate__


@_without_attributes
def _scalar(dtype: Any, data: Any) -> Any:
    return np.frombuffer(_bytes(data), _checked(dtype), count=1)[0]


@_without_attributes
def _encode(text: str, encoding: str = "latin1") -> bytes:
    # Protocol 2 writes byte strings of Python 2 as text to be encoded.
    if encoding != "latin1":
        raise RefusedPickleError(f"_codecs.encode to {encoding!r}")
    return text.encode(encoding)


@_without_attributes
def _no_bytes() -> bytes:
    return b""  # protocol 2 writes the data of an empty array as a call of `bytes`


# Everything that arrays, numbers and ordered dicts need. numpy 2 renamed `core` to `_core`.
_ALLOWED: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("_codecs", "encode"): _encode,
    ("builtins", "bytes"): _no_bytes,
    ("numpy", "ndarray"): object(),  # passed as an argument, never called
    ("numpy", "dtype"): _make_dtype,
}
for _core in ("numpy.core", "numpy._core"):
    _ALLOWED[f"{_core}.multiarray", "_reconstruct"] = _reconstruct
    _ALLOWED[f"{_core}.multiarray", "scalar"] = _scalar
    _ALLOWED[f"{_core}.numeric", "_frombuffer"] = _frombuffer


# Python's implementation. The C implementation allocates memory for the largest object number in a
# pickle, which can be gigabytes after a single damaged byte.
class _Unpickler(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise RefusedPickleError(f"{module}.{name}")
        return _ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> NoReturn:
        raise RefusedPickleError("an object outside of the pickle")


def read_pickle(path: str | Path) -> Any:
    """Return the arrays, numbers, strings and containers of a pickle.

    Raises RefusedPickleError for anything else, and various errors of `pickle` for damaged files.
    """
    with open_file(Path(path)) as stream:
        # latin1: arrays in pickles of Python 2 are byte strings.
        return _Unpickler(stream, encoding="latin1").load()


class UnpickledPlaceholder:
    """Replaces an object that is not needed: it accepts all arguments and ignores them."""

    __slots__ = ()

    def __new__(cls, *_args: Any) -> UnpickledPlaceholder:
        return super().__new__(cls)

    def __init__(self, *_args: Any) -> None: ...

    def __setstate__(self, _state: Any) -> None: ...


class _Settings:
    """Replaces an object with settings, which may be a dict, by a dict of its items."""

    def __new__(cls, *_args: Any) -> Any:
        return collections.OrderedDict()


# The log that mmengine stores with weights: numbers in arrays. `getattr` names its methods.
_LOG = re.compile(
    r"mmengine\.logging\.\w+\.HistoryBuffer|numpy\.(ndarray|dtype|dtypes\.\w+)|builtins\.getattr"
    r"|numpy\._?core\.(multiarray\.(_reconstruct|scalar)|numeric\._frombuffer)|_codecs\.encode"
)
# Settings that training code stores with weights: objects of custom classes, or of these.
_SETTINGS = re.compile(
    r"(argparse|pathlib|datetime|types|typing|enum)\..*|collections\.defaultdict"
    r"|builtins\.(bool|int|float|str|list|dict|tuple|set|object)"
)
_REFUSED_PACKAGES = {*sys.stdlib_module_names, "numpy", "torch"}


def load_weights_only(path: Path) -> Any:
    """Return `torch.load(path, weights_only=True)`, extended to numpy arrays as in `read_pickle`.

    Settings and objects of mmengine's log are replaced, and other objects are refused by name.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if not zipfile.is_zipfile(path):
            raise
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        allowed: Any = [
            (_Settings, name)
            for name in names
            if _SETTINGS.fullmatch(name) or name.split(".")[0] not in _REFUSED_PACKAGES
        ]
        if any(name.startswith("mmengine.") for name in names):
            allowed += [(UnpickledPlaceholder, name) for name in names if _LOG.fullmatch(name)]
        else:
            allowed += [(value, ".".join(name)) for name, value in _ALLOWED.items()]
            # torch only sets the state of listed types. Random names keep a file from calling them.
            allowed += [(kind, secrets.token_hex()) for kind in (_DType, _Array)]
        try:
            with torch.serialization.safe_globals(allowed):
                return torch.load(path, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, TypeError) as refused:
            # If a module of torch is refused, the first error names the pickled model around it.
            unclear = "GLOBAL torch." in str(refused) or "GLOBAL" not in str(refused)
            raise (error if unclear else refused) from None
