"""Read pickles of weights and proposals (.pkl, .pth) without executing their content.

The functions of numpy and torch trust a pickle: a forged dtype, buffer or second state can point
anywhere in memory. Therefore arrays and tensors are built here, as copies, from numbers and text
only. The objects that a pickle may call have no attributes that it could change, and what it builds
is limited by its size: references could otherwise repeat one array until the memory is full.
"""

from __future__ import annotations

import collections
import contextlib
import mmap
import pickle
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from .errors import RefusedPickleError, short_repr
from .reading import open_file, open_stored_zip

_MAX_STEPS = 1 << 24  # operations; a checkpoint has thousands, proposals of COCO have millions
_MAX_PARTS, _MAX_SCALAR = 64, 64  # dimensions or parts of a key, and bytes of a number
_MAX_BUILT = 1 << 24  # bytes of arrays in addition to the size of the file
_DTYPES = {
    "Double": torch.float64, "Float": torch.float32, "Half": torch.float16,
    "BFloat16": torch.bfloat16, "Long": torch.int64, "Int": torch.int32, "Short": torch.int16,
    "Char": torch.int8, "Byte": torch.uint8, "Bool": torch.bool,
    "ComplexFloat": torch.complex64, "ComplexDouble": torch.complex128,
}  # fmt: skip


class _DType:
    """A dtype of numpy; the pickle sets its byte order after creation."""

    __slots__ = ("code", "order")

    def __init__(self, code: str) -> None:
        self.code, self.order = code, ""

    def set_state(self, state: Any) -> None:
        # version, byte order, three fields of structured dtypes, sizes and flags
        if not (isinstance(state, tuple) and len(state) >= 5 and state[1] in ("<", ">", "|", "=")):
            raise RefusedPickleError("numpy.dtype with an unknown state")
        if self.order or any(part is not None for part in state[2:5]):
            raise RefusedPickleError("numpy.dtype with fields or two states")
        self.order = state[1]

    def to_numpy(self) -> np.dtype[Any]:
        return np.dtype((self.order or "=") + self.code)


class _Array(np.ndarray):
    """An array that is filled once, by the state that follows it in the pickle."""

    is_filled = False

    def fill_once(self, shape: Any, dtype: Any, fortran: Any, data: bytes) -> None:
        if self.is_filled:
            raise RefusedPickleError("array with two states")
        self.is_filled = True
        state: Any = (1, shape, _dtype(dtype), bool(fortran), data)
        super().__setstate__(state)


class _Storage:
    """The bytes of tensors."""

    __slots__ = ("data", "dtype")

    def __init__(self, data: Tensor, dtype: torch.dtype | None) -> None:
        self.data, self.dtype = data, dtype


class _Placeholder:
    """Replaces an object that is not needed, such as a method that a log names."""

    __slots__ = ()


class _Argument:
    """A class that a pickle may pass as an argument, but not call."""

    __slots__ = ()


class _Callable:
    """A function that a pickle may call: a method of `_Unpickler`."""

    __slots__ = ("build",)

    def __init__(self, build: Callable[..., Any]) -> None:
        self.build = build


def _shown(value: Any) -> str:
    """Return a text for a message; that of other objects may take forever if they are nested."""
    return short_repr(value) if isinstance(value, str) else type(value).__name__


def _dtype(dtype: Any) -> np.dtype[Any]:
    if not isinstance(dtype, _DType):
        raise RefusedPickleError(f"array of {type(dtype).__name__}")
    return dtype.to_numpy()


# Settings that training code stores with weights: objects of custom classes, or of these.
_SETTINGS = re.compile(
    r"(argparse|pathlib|datetime|types|typing|enum)\..*|collections\.(defaultdict|OrderedDict)"
    r"|builtins\.(bool|int|float|str|list|dict|tuple|set|object)"
)
# The log that mmengine stores with weights: numbers in arrays. `getattr` names its methods.
_LOG = re.compile(r"numpy\.dtypes\.\w+|builtins\.getattr")
_REFUSED_PACKAGES = {*sys.stdlib_module_names, "__builtin__", "numpy", "torch"}
_KEYS = (str, int, float, bool, bytes, type(None), np.generic)


# Python's implementation. The C implementation allocates memory for the largest object number in a
# pickle, which can be gigabytes after a single damaged byte.
class _Unpickler(pickle._Unpickler):
    """Builds arrays, tensors, numbers, strings and containers, and refuses everything else.

    Args:
        stream: the pickle.
        size: bytes of the whole file, which limit the bytes of the arrays.
        settings: replace settings and logs instead of refusing them.
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
        self._steps, self._left = 0, size + _MAX_BUILT
        self._settings, self._storage = settings, storage
        self._first_class = ""  # of an object that is replaced

    def count_step(self) -> None:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise RefusedPickleError(f"sequence of more than {_MAX_STEPS} operations")

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

    def find_class(self, module: str, name: str) -> Any:
        full_name = f"{module}.{name}".replace("__builtin__.", "builtins.")
        if full_name in _ARGUMENTS:
            return _Argument()
        if method := _ALLOWED.get(full_name.replace("numpy.core.", "numpy._core.")):
            return _Callable(method)
        if module in ("torch", "torch.storage"):
            if name.removesuffix("Storage") in _DTYPES:
                return _DTYPES[name.removesuffix("Storage")]
            if isinstance(dtype := getattr(torch, name, None), torch.dtype):
                return dtype
        if self._settings:
            if _LOG.fullmatch(full_name):
                return _Callable(_Unpickler._placeholder)
            if _SETTINGS.fullmatch(full_name) or module.split(".")[0] not in _REFUSED_PACKAGES:
                self._first_class = self._first_class or full_name
                return _Callable(_Unpickler._dict)
            if module.startswith("torch.") and self._first_class:  # the model around a module
                raise RefusedPickleError(self._first_class)
        raise RefusedPickleError(full_name)

    def persistent_load(self, pid: Any) -> _Storage:
        if self._storage is None or not isinstance(pid, tuple) or len(pid) < 5:
            raise pickle.UnpicklingError("an object outside of the pickle")
        kind, dtype, key, _, count = pid[:5]
        untyped = isinstance(dtype, _Argument)
        known = isinstance(key, str) and (untyped or isinstance(dtype, torch.dtype))
        if kind != "storage" or not known:
            raise pickle.UnpicklingError("an object outside of the pickle that is no storage")
        data = self._storage(key, int(count) * (1 if untyped else dtype.itemsize))
        return _Storage(data, None if untyped else dtype)

    # Objects

    def _dict(self, *_arguments: Any) -> Any:
        return collections.OrderedDict()

    def _placeholder(self, *_arguments: Any) -> Any:
        return _Placeholder()

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

    def _device(self, name: Any, index: Any = None) -> str:
        if not isinstance(name, str):
            raise RefusedPickleError("torch.device without a name")
        return name

    def _tensor(
        self, storage: Any, offset: Any, size: Any, stride: Any, *rest: Any, dtype: Any = None
    ) -> Tensor:
        dtype = dtype or getattr(storage, "dtype", None)
        if not isinstance(storage, _Storage) or not isinstance(dtype, torch.dtype):
            raise RefusedPickleError("tensor without a storage")
        count = len(storage.data) // dtype.itemsize
        values = storage.data[: count * dtype.itemsize].view(dtype)
        # Raises an error outside of the values.
        return values.as_strided(self._tuple(size), self._tuple(stride), offset)

    def _tensor_of_dtype(
        self, storage: Any, offset: Any, size: Any, stride: Any, grad: Any, hooks: Any, dtype: Any,
        *rest: Any,
    ) -> Tensor:  # fmt: skip
        return self._tensor(storage, offset, size, stride, dtype=dtype)

    def _parameter(self, data: Any, *rest: Any) -> Any:
        return data

    def _subclass(self, function: Any, kind: Any, arguments: Any, state: Any) -> Any:
        return self._call(function, arguments)

    # Operations

    def _call(self, function: Any, arguments: Any) -> Any:
        if not isinstance(function, _Callable):
            raise RefusedPickleError(f"call of {type(function).__name__}")
        return function.build(self, *arguments)

    def load_reduce(self) -> None:
        arguments = self.stack.pop()
        self.stack[-1] = self._call(self.stack[-1], arguments)

    def load_newobj_ex(self) -> None:
        self.stack.pop()  # keyword arguments
        self.load_reduce()

    def _instantiate(self, kind: Any, arguments: Any) -> None:
        self.append(self._call(kind, arguments))

    def load_build(self) -> None:
        state, built = self.stack.pop(), self.stack[-1]
        if isinstance(built, _DType):
            built.set_state(state)
        elif isinstance(built, _Array):
            _, shape, dtype, fortran, data = state
            built.fill_once(shape, dtype, fortran, self._spend(data))
        elif not isinstance(built, (dict, _Placeholder)):  # whose attributes are ignored
            raise RefusedPickleError(f"state of {type(built).__name__}")

    def load_setitem(self) -> None:
        self._set_items([self.stack.pop(-2), self.stack.pop()])

    def load_setitems(self) -> None:
        self._set_items(self.pop_mark())

    def _set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise RefusedPickleError(f"items of {type(target).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[_key(key)] = value

    def load_additems(self) -> None:
        items = self.pop_mark()
        self.stack[-1].update(map(_key, items))

    def load_frozenset(self) -> None:
        self.append(frozenset(map(_key, self.pop_mark())))


def _key(key: Any) -> Any:
    """Return the key of a dict or the member of a set.

    It is hashed again for each reference to it: nested tuples may take forever, and long ones and
    large numbers as long as their number of references.
    """
    parts = key if isinstance(key, tuple) else (key,)
    if len(parts) > _MAX_PARTS or not all(_is_small(part) for part in parts):
        raise RefusedPickleError(f"key of type {type(key).__name__}")
    return key


def _is_small(part: Any) -> bool:
    if isinstance(part, int):
        return part.bit_length() <= 64
    # The hash of a text is stored in it, unlike that of a number of numpy.
    return isinstance(part, _KEYS) and getattr(part, "nbytes", 0) <= _MAX_SCALAR


_OVERRIDDEN: dict[bytes, Callable[[Any], None]] = {
    pickle.REDUCE: _Unpickler.load_reduce, pickle.NEWOBJ: _Unpickler.load_reduce,
    pickle.NEWOBJ_EX: _Unpickler.load_newobj_ex, pickle.BUILD: _Unpickler.load_build,
    pickle.SETITEM: _Unpickler.load_setitem, pickle.SETITEMS: _Unpickler.load_setitems,
    pickle.ADDITEMS: _Unpickler.load_additems, pickle.FROZENSET: _Unpickler.load_frozenset,
}  # fmt: skip


def _counted(operation: Callable[[Any], None]) -> Callable[[Any], None]:
    def counted(unpickler: _Unpickler) -> None:
        unpickler.count_step()
        operation(unpickler)

    return counted


_OPERATIONS = pickle._Unpickler.dispatch | {code[0]: op for code, op in _OVERRIDDEN.items()}
_Unpickler.dispatch = {code: _counted(operation) for code, operation in _OPERATIONS.items()}

_ARGUMENTS = {"numpy.ndarray", "torch.storage.UntypedStorage", "torch.nn.parameter.Parameter"}
# What checkpoints of known frameworks contain. numpy 2 renamed `core` to `_core`.
_ALLOWED: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _Unpickler._dict,
    "_codecs.encode": _Unpickler._encode,
    "builtins.bytes": _Unpickler._no_bytes,
    "numpy.dtype": _Unpickler._make_dtype,
    "numpy._core.multiarray._reconstruct": _Unpickler._reconstruct,
    "numpy._core.multiarray.scalar": _Unpickler._scalar,
    "numpy._core.numeric._frombuffer": _Unpickler._frombuffer,
    "torch.Size": _Unpickler._tuple,
    "torch.device": _Unpickler._device,
    "torch._utils._rebuild_tensor": _Unpickler._tensor,
    "torch._utils._rebuild_tensor_v2": _Unpickler._tensor,
    "torch._utils._rebuild_tensor_v3": _Unpickler._tensor_of_dtype,
    "torch._utils._rebuild_parameter": _Unpickler._parameter,
    "torch._utils._rebuild_parameter_with_state": _Unpickler._parameter,
    "torch._tensor._rebuild_from_type_v2": _Unpickler._subclass,
}


@contextlib.contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    """Map a file, because reading more bytes than a file has would allocate them first."""
    with open_file(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as stream:
        yield stream


def read_pickle(path: str | Path) -> Any:
    """Return the arrays, numbers, strings and containers of a pickle.

    Raises RefusedPickleError for anything else, and various errors of `pickle` for damaged files.
    """
    with _mapped(Path(path)) as stream:
        return _Unpickler(stream, len(stream)).load()  # type: ignore[arg-type]


def load_torch_file(path: Path) -> Any:
    """Return the content of a file of `torch.save` on the CPU, without executing code in it.

    Besides the objects of `read_pickle` it may have dense tensors. Settings and logs that training
    code stores with weights become empty dicts.

    Raises:
        RefusedPickleError: it has other objects.
        Exception: various errors for damaged files.
    """
    return (_load_zip if zipfile.is_zipfile(path) else _load_legacy)(path)


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
                data = bytearray(archive.read(f"{folder}data/{key}"))
                storages[key] = torch.frombuffer(data, dtype=torch.uint8) if data else _EMPTY
            return _checked_size(storages[key], size)

        with archive.open(pickles[0]) as stream:
            return _Unpickler(stream, path.stat().st_size, settings=True, storage=read).load()


_EMPTY = torch.zeros(0, dtype=torch.uint8)


def _checked_size(data: Tensor, size: int) -> Tensor:
    if not 0 <= size <= len(data):
        raise ValueError(f"a storage of {size} bytes has {len(data)}")
    return data


def _load_legacy(path: Path) -> Any:
    """Load the format before torch 1.6: five pickles, then the bytes of the storages."""
    with _mapped(path) as stream:
        if torch.serialization.MAGIC_NUMBER.to_bytes(10, "little") not in stream[:64]:
            raise ValueError("it is no file of torch.save")
        size, storages = len(stream), dict[str, Tensor]()
        left = size

        def allocate(key: str, count: int) -> Tensor:
            nonlocal left
            if key not in storages:
                left -= count
                if count < 0 or left < 0:
                    raise ValueError("its storages are larger than the file")
                storages[key] = torch.zeros(count, dtype=torch.uint8)
            return _checked_size(storages[key], count)

        def load(**options: Any) -> Any:
            return _Unpickler(stream, size, **options).load()  # type: ignore[arg-type]

        load(), load(), load()  # the magic number, version and system
        content = load(settings=True, storage=allocate)
        for key in load():
            storage, count = storages[key], int.from_bytes(stream.read(8), "little")
            data = stream.read(len(storage))
            if len(data) < len(storage) or len(storage) % max(count, 1):
                raise ValueError("it is truncated")
            storage.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else _EMPTY)
        return content
