"""Read the configs of mmdetection, Python files of assignments, without running them."""

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_NUMBERS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
# Items or characters of a sum. Repeated doubling, `a = a + a`, could otherwise use all memory.
_MAX_LENGTH = 10_000
_MAX_NUMBER = 2.0**63


@dataclass(frozen=True)
class UnparsedExpression:
    """An expression that is not a literal. It is an error only if its value is needed."""

    text: str


def read_python_config(text: str) -> dict[str, Any]:
    """Return the values that a flat config file assigns, by name. Nothing is executed.

    Literals, `dict(...)`, names assigned before, and short sums of them are evaluated; other
    expressions become `UnparsedExpression`.

    Raises:
        ValueError: not valid Python, statements other than assignments, or a `_base_`.
    """
    values: dict[str, Any] = {}
    try:
        for statement in _statements(text):
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                values[statement.targets[0].id] = _value(statement.value, values)
            elif not isinstance(statement, (ast.Import, ast.ImportFrom, ast.Expr)):
                raise ValueError(
                    f"its config has a statement other than an assignment in line "
                    f"{statement.lineno}: {_source(statement)}"
                )
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(
            f"its config is not valid Python ({str(error) or 'nested too deep'})"
        ) from error
    if "_base_" in values:
        raise ValueError(
            "its config has _base_, other files that it includes: use the flat config that "
            "training writes next to its checkpoints, or the output of tools/misc/print_config.py"
        )
    return values


def _statements(text: str) -> list[ast.stmt]:
    try:
        return ast.parse(text).body
    except ValueError as error:  # a NUL character, until Python 3.10
        raise SyntaxError(str(error)) from error


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple)):
        items = [_value(item, names) for item in node.elts]
        return items if isinstance(node, ast.List) else tuple(items)
    if isinstance(node, (ast.Dict, ast.Call)):
        merged = _dict(node, names)
        return _unparsed(node) if merged is None else merged
    if isinstance(node, ast.Name):
        return names.get(node.id, _unparsed(node))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _value(node.operand, names)
        return -value if is_number(value) else _unparsed(node)
    if isinstance(node, ast.BinOp) and type(node.op) in _NUMBERS:
        left, right = _value(node.left, names), _value(node.right, names)
        if isinstance(node.op, ast.Add) and type(left) is type(right) in (str, list, tuple):
            return left + right if len(left) + len(right) <= _MAX_LENGTH else _unparsed(node)
        if is_number(left) and is_number(right):
            try:
                value = _NUMBERS[type(node.op)](left, right)
            except ArithmeticError:
                return _unparsed(node)
            return value if abs(value) <= _MAX_NUMBER else _unparsed(node)
    return _unparsed(node)


def _dict(node: ast.Dict | ast.Call, names: Mapping[str, Any]) -> dict[Any, Any] | None:
    """Evaluate {...} or dict(...); None for other calls and unknown parts."""
    pairs: list[tuple[ast.expr | None, ast.expr]]
    if isinstance(node, ast.Dict):
        pairs = list(zip(node.keys, node.values, strict=True))
    elif isinstance(node.func, ast.Name) and node.func.id == "dict" and not node.args:
        pairs = [
            (ast.Constant(item.arg) if item.arg else None, item.value) for item in node.keywords
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
        elif isinstance(value, dict):  # `**value`
            merged |= value
        else:
            return None
    return merged


def is_number(value: Any) -> bool:
    """True for int and float, not for bool."""
    return type(value) in (int, float)


def _unparsed(node: ast.AST) -> UnparsedExpression:
    return UnparsedExpression(_source(node))


def _source(node: ast.AST) -> str:
    text = ast.unparse(node).splitlines()[0]
    return text if len(text) <= 60 else f"{text[:57]}..."
