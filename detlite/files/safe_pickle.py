"""Read pickles of weights and proposals (.pkl, .pth) without executing their content.

The functions of numpy and torch trust a pickle: a forged dtype, buffer or second state can point
anywhere in memory. Therefore arrays and tensors are built here from numbers and text only. No
operation of a pickle can change the functions that it calls, and what it builds is limited by its
size: references could otherwise repeat one array until the memory is full.
"""

from __future__ import annotations

import collections
import mmap
import pickle
import re
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from .errors import RefusedPickleError, short_repr
from .reading import open_file, open_stored_zip

_MAGIC = torch.serialization.MAGIC_NUMBER.to_bytes(10, "little")  # of torch.save before torch 1.6
_MAX_STEPS = 1 << 24  # operations; a checkpoint has thousands, proposals of COCO have millions
_CALL_STEPS, _STORAGE_STEPS = 16, 256  # operations that take as long as a call or a storage
# Dimensions, arguments or parts of a key; bytes of a number; keys that are neither text nor
# integers, whose hashes can be made equal.
_MAX_PARTS, _MAX_SCALAR, _MAX_OTHER_KEYS = 64, 64, 4096
_MAX_BUILT = 1 << 24  # bytes of arrays in addition to the size of the file
_DTYPES = {
    "Double": torch.float64, "Float": torch.float32, "Half": torch.float16,
    "BFloat16": torch.bfloat16, "Long": torch.int64, "Int": torch.int32, "Short": torch.int16,
    "Char": torch.int8, "Byte": torch.uint8, "Bool": torch.bool,
    "ComplexFloat": torch.complex64, "ComplexDouble": torch.complex128,
}  # fmt: skip
# Settings and logs that training code stores with weights: objects of custom classes, or of these.
_SETTINGS = re.compile(
    r"(argparse|pathlib|datetime|types|typing|enum)\..*|collections\.(defaultdict|OrderedDict)"
    r"|builtins\.(bool|int|float|str|list|dict|tuple|set|object|getattr)|numpy\.dtypes\.\w+"
)
_REFUSED_PACKAGES = {*sys.stdlib_module_names, "__builtin__", "numpy", "torch"}
_KEYS = (str, int, float, bool, bytes, type(None), np.generic)


class _DType:
    """A dtype of numpy; the pickle sets its byte order after creation."""

    __slots__ = ("code", "order")

    def __init__(self, code: str) -> None:
        self.code, self.order = code, "="


class _Array(np.ndarray):
    """An array that is filled once, by the state that follows it in the pickle."""

    is_filled = False


def _dtype(dtype: Any) -> np.dtype[Any]:
    if not isinstance(dtype, _DType):
        raise RefusedPickleError(f"array of {type(dtype).__name__}")
    return np.dtype(dtype.order + dtype.code)


def _shown(value: Any) -> str:
    """Return a text for a message; that of other objects may take forever if they are nested."""
    return short_repr(value) if isinstance(value, str) else type(value).__name__


# Python's implementation. The C implementation allocates memory for the largest object number in a
# pickle, which can be gigabytes after a single damaged byte.
class _Unpickler(pickle._Unpickler):
    """Builds arrays, tensors, numbers, strings and containers, and refuses everything else.

    Args:
        stream: the pickle.
        size: bytes of the whole file, which limit the bytes of the arrays.
        settings: replace settings and logs by empty dicts instead of refusing them.
        storage: returns the bytes uint8 [N] of a persistent id's key and number of bytes.
    """

    stack: list[Any]  # attributes of the base class that its stubs do not declare
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]
    dispatch: ClassVar[dict[int, Callable[[Any], None]]]

    def __init__(
        self,
        stream: IO[bytes],
        size: int,
        settings: bool = False,
        storage: Callable[[str, int], Tensor] | None = None,
    ) -> None:
        # latin1: arrays in pickles of Python 2 are byte strings.
        super().__init__(stream, encoding="latin1")
        self._steps, self._left, self._other_keys = 0, size + _MAX_BUILT, 0
        self._settings, self._storage = settings, storage

    def count(self, steps: int = 1) -> None:
        """Count operations, and refuse too many."""
        self._steps += steps
        if self._steps > _MAX_STEPS:
            raise RefusedPickleError(f"sequence of more than {_MAX_STEPS} operations")

    def find_class(self, module: str, name: str) -> Any:
        full_name = f"{module}.{name}".replace("__builtin__.", "builtins.")
        full_name = full_name.replace("numpy.core.", "numpy._core.")  # renamed by numpy 2
        if full_name in _ARGUMENTS:
            return _ARGUMENTS[full_name]
        if full_name in _ALLOWED:
            return partial(_ALLOWED[full_name], self)
        if module in ("torch", "torch.storage"):
            dtype = _DTYPES.get(name.removesuffix("Storage"), getattr(torch, name, None))
            if isinstance(dtype, torch.dtype):
                return dtype
        custom = module.split(".")[0] not in _REFUSED_PACKAGES
        if self._settings and (custom or _SETTINGS.fullmatch(full_name)):
            return partial(_Unpickler._dict, self)
        raise RefusedPickleError(full_name)

    def persistent_load(self, pid: Any) -> Tensor:
        self.count(_STORAGE_STEPS)
        if self._storage is None or not isinstance(pid, tuple) or len(pid) < 5:
            raise pickle.UnpicklingError("an object outside of the pickle")
        kind, dtype, key, _, count = pid[:5]
        if kind != "storage" or not isinstance(key, str) or not isinstance(dtype, torch.dtype):
            raise pickle.UnpicklingError("an object outside of the pickle that is no storage")
        return self._storage(key, int(count) * dtype.itemsize).view(dtype)

    # Functions that a pickle may call

    def _dict(self, *_arguments: Any) -> Any:
        return collections.OrderedDict()

    def _make_dtype(self, code: Any, align: Any = False, copy: Any = True) -> _DType:
        # bool, integers, floats, complex numbers and text
        if not isinstance(code, str) or not re.fullmatch(r"[biufcSU]\d+", code):
            raise RefusedPickleError(f"numpy.dtype of {_shown(code)}")
        return _DType(code)

    def _reconstruct(self, kind: Any, shape: Any, code: Any) -> _Array:
        return _Array((0,), dtype=np.uint8)

    def _frombuffer(self, data: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray:
        array = np.frombuffer(self._spend(data), _dtype(dtype)).reshape(shape, order=order)
        return array.astype(array.dtype.newbyteorder("="))  # like numpy's own __setstate__

    def _scalar(self, dtype: Any, data: Any) -> Any:
        return np.frombuffer(self._spend(data), _dtype(dtype), count=1)[0]

    def _encode(self, text: str, encoding: str = "latin1") -> bytes:
        # Protocol 2 writes bytes as text to be encoded.
        if encoding != "latin1":
            raise RefusedPickleError(f"_codecs.encode to {_shown(encoding)}")
        return self._spend(text)

    def _no_bytes(self) -> bytes:
        return b""  # protocol 2 writes the data of an empty array as a call of `bytes`

    def _tuple(self, items: Any = ()) -> tuple[Any, ...]:
        if not isinstance(items, (list, tuple)) or len(items) > _MAX_PARTS:
            raise RefusedPickleError("torch.Size of no short sequence")
        return tuple(items)

    def _tensor(self, storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> Tensor:
        if not isinstance(storage, Tensor):
            raise RefusedPickleError("tensor without a storage")
        # Raises an error outside of the storage.
        return storage.as_strided(self._tuple(size), self._tuple(stride), offset)

    def _tensor_of_dtype(
        self, storage: Any, offset: Any, size: Any, stride: Any, grad: Any, hooks: Any, dtype: Any,
        *rest: Any,
    ) -> Tensor:  # fmt: skip
        return self._tensor(storage.view(dtype), offset, size, stride)

    def _parameter(self, data: Any, *rest: Any) -> Any:
        return data

    def _subclass(self, function: Any, kind: Any, arguments: Any, state: Any) -> Any:
        return self._call(function, arguments)

    def _call(self, function: Any, arguments: Any) -> Any:
        self.count(_CALL_STEPS)
        # A tensor would be taken apart into as many arguments as it has rows.
        is_short = isinstance(arguments, tuple) and len(arguments) <= _MAX_PARTS
        if not isinstance(function, partial) or not is_short:
            raise RefusedPickleError(
                "call of an object, or with other arguments than a short tuple"
            )
        return function(*arguments)

    def _spend(self, data: Any) -> bytes:
        """Return bytes for an array, a copy that is counted."""
        if isinstance(data, str):  # a byte string of Python 2
            data = data.encode("latin1")
        if not isinstance(data, (bytes, bytearray)):
            raise RefusedPickleError(f"array of {type(data).__name__}")
        self._left -= len(data)
        if self._left < 0:
            raise RefusedPickleError("array that is repeated until it fills the memory")
        return bytes(data)

    # Operations that differ from Python's

    def load_build(self) -> None:
        state, built = self.stack.pop(), self.stack[-1]
        if isinstance(built, _DType):
            # version, byte order, three fields of structured dtypes, sizes and flags
            if state[1] not in ("<", ">", "|", "=") or any(part is not None for part in state[2:5]):
                raise RefusedPickleError("numpy.dtype with an unknown state")
            built.order = state[1]
        elif isinstance(built, _Array):
            if built.is_filled:
                raise RefusedPickleError("array with two states")
            built.is_filled = True
            _, shape, dtype, fortran, data = state
            checked: Any = (1, shape, _dtype(dtype), bool(fortran), self._spend(data))
            built.__setstate__(checked)
        elif not isinstance(built, dict):  # whose attributes are ignored
            raise RefusedPickleError(f"state of {type(built).__name__}")

    def load_reduce(self) -> None:
        arguments = self.stack.pop()
        self.stack[-1] = self._call(self.stack[-1], arguments)

    def load_dict(self) -> None:
        items = self.pop_mark()
        self.append({})
        self._set_items(items)

    def load_setitem(self) -> None:
        self._set_items([self.stack.pop(-2), self.stack.pop()])

    def load_setitems(self) -> None:
        self._set_items(self.pop_mark())

    def _set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise RefusedPickleError(f"items of {type(target).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # A key is hashed again for each reference to it: nested tuples may take forever, and
            # long ones and large numbers as long as their number of references.
            parts = key if isinstance(key, tuple) else (key,)
            if len(parts) > _MAX_PARTS or not all(map(_is_small, parts)):
                raise RefusedPickleError(f"key of type {type(key).__name__}")
            self._other_keys += not isinstance(key, (str, int))
            if self._other_keys > _MAX_OTHER_KEYS:
                raise RefusedPickleError(
                    f"{_MAX_OTHER_KEYS} keys that are neither texts nor integers"
                )
            target[key] = value

    def load_refused(self) -> None:
        raise RefusedPickleError("set or object of another class")


def _is_small(part: Any) -> bool:
    if isinstance(part, int):
        return part.bit_length() <= 64
    # The hash of a text is stored in it, unlike that of a number of numpy.
    return isinstance(part, _KEYS) and getattr(part, "nbytes", 0) <= _MAX_SCALAR


def _counted(operation: Callable[[Any], None]) -> Callable[[Any], None]:
    def counted(unpickler: _Unpickler) -> None:
        unpickler.count()
        operation(unpickler)

    return counted


_OPERATIONS: dict[int, Callable[[Any], None]] = {
    **pickle._Unpickler.dispatch,
    pickle.REDUCE[0]: _Unpickler.load_reduce,
    pickle.NEWOBJ[0]: _Unpickler.load_reduce,
    pickle.BUILD[0]: _Unpickler.load_build,
    pickle.DICT[0]: _Unpickler.load_dict,
    pickle.SETITEM[0]: _Unpickler.load_setitem,
    pickle.SETITEMS[0]: _Unpickler.load_setitems,
    **dict.fromkeys(
        (pickle.EMPTY_SET[0], pickle.FROZENSET[0], pickle.ADDITEMS[0], pickle.NEWOBJ_EX[0]),
        _Unpickler.load_refused,
    ),
}
_Unpickler.dispatch = {code: _counted(operation) for code, operation in _OPERATIONS.items()}

# What checkpoints of known frameworks contain: classes as arguments, and functions that are called.
_ARGUMENTS = {
    "numpy.ndarray": None,
    "torch.Tensor": None,
    "torch.nn.parameter.Parameter": None,
    "torch.storage.UntypedStorage": torch.uint8,
}
_ALLOWED: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _Unpickler._dict,
    "_codecs.encode": _Unpickler._encode,
    "builtins.bytes": _Unpickler._no_bytes,
    "numpy.dtype": _Unpickler._make_dtype,
    "numpy._core.multiarray._reconstruct": _Unpickler._reconstruct,
    "numpy._core.multiarray.scalar": _Unpickler._scalar,
    "numpy._core.numeric._frombuffer": _Unpickler._frombuffer,
    "torch.Size": _Unpickler._tuple,
    "torch.device": _Unpickler._dict,  # not used
    "torch._utils._rebuild_tensor": _Unpickler._tensor,
    "torch._utils._rebuild_tensor_v2": _Unpickler._tensor,
    "torch._utils._rebuild_tensor_v3": _Unpickler._tensor_of_dtype,
    "torch._utils._rebuild_parameter": _Unpickler._parameter,
    "torch._utils._rebuild_parameter_with_state": _Unpickler._parameter,
    "torch._tensor._rebuild_from_type_v2": _Unpickler._subclass,
}


def read_pickle(path: str | Path) -> Any:
    """Return the content of a pickle or of a file of `torch.save`, without executing code in it.

    A pickle may have arrays, numbers, strings and containers. A file of `torch.save` may also have
    dense tensors, on the CPU; settings and logs that training code stores with weights become empty
    dicts.

    Raises:
        RefusedPickleError: it has other objects.
        Exception: various errors for damaged files.
    """
    path = Path(path)
    if zipfile.is_zipfile(path):
        return _load_zip(path)
    # Mapped, because reading more bytes than a file has would allocate them first.
    with open_file(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as stream:
        load: Any = partial(_Unpickler, stream, len(stream))  # type: ignore[arg-type]
        return _load_legacy(stream, load) if _MAGIC in stream[:64] else load().load()


def _load_zip(path: Path) -> Any:
    with open_stored_zip(path) as archive:
        names = archive.namelist()
        pickles = [name for name in names if name.count("/") == 1 and name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise ValueError("it has no data.pkl")
        folder = pickles[0].removesuffix("data.pkl")
        if (order := f"{folder}byteorder") in names and archive.read(order) != b"little":
            raise ValueError("its tensors are big-endian")
        storages: dict[str, Tensor] = {}

        def read(key: str, size: int) -> Tensor:
            if key not in storages:
                storages[key] = _as_tensor(archive.read(f"{folder}data/{key}"))
            return _first_bytes(storages[key], size)

        with archive.open(pickles[0]) as stream:
            return _Unpickler(stream, path.stat().st_size, settings=True, storage=read).load()


def _as_tensor(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(data), np.uint8))


def _first_bytes(data: Tensor, size: int) -> Tensor:
    if not 0 <= size <= len(data):
        raise ValueError(f"a storage of {size} bytes has {len(data)}")
    return data[:size]


def _load_legacy(stream: mmap.mmap, unpickler: Callable[..., _Unpickler]) -> Any:
    """Load the format before torch 1.6: five pickles, then the bytes of the storages."""
    storages: dict[str, Tensor] = {}
    left = len(stream)

    def allocate(key: str, size: int) -> Tensor:
        nonlocal left
        if key not in storages:
            left -= size
            if size < 0 or left < 0:
                raise ValueError("its storages are larger than the file")
            storages[key] = torch.zeros(size, dtype=torch.uint8)
        return _first_bytes(storages[key], size)

    for _ in range(3):  # the magic number, version and system
        unpickler().load()
    content = unpickler(settings=True, storage=allocate).load()
    keys = unpickler().load()
    if not isinstance(keys, list) or {*keys} != storages.keys():
        raise ValueError("it lacks values of some tensors")
    for key in keys:
        storage, count = storages[key], int.from_bytes(stream.read(8), "little")
        data = stream.read(len(storage))
        if len(data) < len(storage) or len(storage) % max(count, 1):
            raise ValueError("it is truncated")
        storage.copy_(_as_tensor(data))
    return content
