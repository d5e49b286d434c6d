"""mmdetection's configs, Python files of assignments, read without running them."""

from __future__ import annotations

import ast
import operator
import reprlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

_NUMBERS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
# Items or characters of a sum: names stand for sums of themselves, so that without a limit a few
# lines would take all memory.
_MOST = 10_000
# So that a message stays short, of values that hold others many times over as well.
_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxstring, _REPR.maxother = 3, 80, 80


@dataclass(frozen=True)
class Unread:
    """An expression that is no literal; an error only where its value is needed."""

    text: str


def read_python_config(text: str) -> dict[str, Any]:
    """The values that a flat config file assigns, by name.

    Literals, `dict(...)`, names assigned before, and short sums of them are values; of all else the
    text is kept as `Unread`. Nothing is executed.

    Raises:
        ValueError: no Python, statements other than assignments, or a file that has bases.
    """
    values: dict[str, Any] = {}
    try:
        for statement in _statements(text):
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                values[statement.targets[0].id] = _value(statement.value, values)
            elif not isinstance(statement, (ast.Import, ast.ImportFrom, ast.Expr)):
                raise ValueError(
                    f"its config does more than assign values: {_shown(statement)} in line "
                    f"{statement.lineno}"
                )
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"its config is no Python ({str(error) or 'nested too deep'})") from error
    if "_base_" in values:
        raise ValueError(
            "its config has _base_, files that it builds on: take the flat one that training "
            "writes beside its checkpoints, or tools/misc/print_config.py"
        )
    return values


def _statements(text: str) -> list[ast.stmt]:
    try:
        return ast.parse(text).body
    except ValueError as error:  # a NUL, to Python 3.10
        raise SyntaxError(str(error)) from error


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple)):
        items = [_value(item, names) for item in node.elts]
        return items if isinstance(node, ast.List) else tuple(items)
    if isinstance(node, (ast.Dict, ast.Call)):
        merged = _merged(node, names)
        return _unread(node) if merged is None else merged
    if isinstance(node, ast.Name):
        return names.get(node.id, _unread(node))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _value(node.operand, names)
        return -value if _is_number(value) else _unread(node)
    if isinstance(node, ast.BinOp) and type(node.op) in _NUMBERS:
        left, right = _value(node.left, names), _value(node.right, names)
        if isinstance(node.op, ast.Add) and type(left) is type(right) in (str, list, tuple):
            return left + right if len(left) + len(right) <= _MOST else _unread(node)
        if _is_number(left) and _is_number(right):
            try:
                value = _NUMBERS[type(node.op)](left, right)
            except ArithmeticError:
                return _unread(node)
            return value if abs(value) <= 2.0**63 else _unread(node)
    return _unread(node)


def _merged(node: ast.Dict | ast.Call, names: Mapping[str, Any]) -> dict[Any, Any] | None:
    """What {...} or dict(...) makes; None: it is not that, or made of what is not known."""
    pairs: list[tuple[ast.expr | None, ast.expr]]
    if isinstance(node, ast.Dict):
        pairs = list(zip(node.keys, node.values, strict=True))
    elif isinstance(node.func, ast.Name) and node.func.id == "dict" and not node.args:
        pairs = [
            (ast.Constant(word.arg) if word.arg else None, word.value) for word in node.keywords
        ]
    else:
        return None
    merged: dict[Any, Any] = {}
    for key, expression in pairs:
        value = _value(expression, names)
        if key is not None:
            name = _value(key, names)
            if not isinstance(name, (str, int)):
                return None
            merged[name] = value
        elif isinstance(value, dict):  # of `**`
            merged |= value
        else:
            return None
    return merged


def shown(value: Any) -> str:
    """A value as messages show it."""
    return _REPR.repr(value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _unread(node: ast.AST) -> Unread:
    return Unread(_shown(node))


def _shown(node: ast.AST) -> str:
    text = ast.unparse(node).splitlines()[0]
    return text if len(text) <= 60 else f"{text[:57]}..."


class Part:
    """A dict of a config, which says what it does not know.

    Attributes:
        where: its place, in messages.
    """

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, dict):
            raise ValueError(f"its config has no dict {where}")
        self._values = values
        self.where = where

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key.

        Raises:
            ValueError: it is no literal.
        """
        value = self._values.get(key, default)
        if isinstance(value, Unread):
            raise ValueError(
                f"its config says {self.where}.{key} = {value.text}, which is no literal"
            )
        return value

    def numbers(self, key: str, default: Any = None) -> list[float]:
        """The value of a key, which is a number or a row of them."""
        value = self.get(key)
        value = default if value is None else value
        row = list(value) if isinstance(value, (list, tuple)) else [value]
        if not row or not all(_is_number(item) for item in row):
            raise ValueError(
                f"its config says {self.where}.{key} = {shown(value)}, where numbers stand"
            )
        return row

    def number(self, key: str, default: Any = None) -> Any:
        """The value of a key, which is one number."""
        row = self.numbers(key, default)
        if len(set(row)) > 1:
            raise ValueError(
                f"its config says {self.where}.{key} = {shown(row)}, where one number stands"
            )
        return row[0]

    def part(self, key: str) -> Part:
        """The dict of a key."""
        return Part(self.get(key), f"{self.where}.{key}")

    def parts(self, key: str) -> list[Part]:
        """The dicts of a key, which has one or a list of them."""
        value = self.get(key)
        if not isinstance(value, (list, tuple)):
            return [self.part(key)]
        return [Part(item, f"{self.where}.{key}[{number}]") for number, item in enumerate(value)]

    @property
    def kind(self) -> str:
        """Its class, without the modules that newer files name it by."""
        return str(self.get("type", "")).rpartition(".")[2]

    def refuse(self, key: str, wanted: str) -> NoReturn:
        """Raises ValueError: the value of a key is none of what is `wanted`."""
        value = self.get(key)
        raise ValueError(
            f"its config says {self.where}.{key} = {shown(value)}: only {wanted} is converted"
        )

    def check(self, kinds: Collection[str] = (), read: str = "", **only: tuple[Any, ...]) -> None:
        """Refuses what is not understood.

        Args:
            kinds: classes that it may be of; empty: it is of none.
            read: the keys that others read, or that change no detection, with spaces between.
            only: the values that further keys may have, beside None.

        Raises:
            ValueError: another class, another key, or another value.
        """
        if kinds and self.kind not in kinds:
            self.refuse("type", ", ".join(kinds))
        for key in self._values:
            if key == "type" or key in read.split() or str(key).startswith(("loss_", "init_")):
                continue
            if key not in only:
                raise ValueError(f"its config has {self.where}.{key}, which is not understood")
            value = self.get(key)
            if value is not None and value not in only[key]:
                self.refuse(key, ", ".join(map(repr, only[key])) or "None")
