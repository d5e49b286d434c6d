"""Read the configs of mmdetection, Python files of assignments, without running them."""

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
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
        statements = ast.parse(
            text.replace("\0", "?")
        ).body  # Python 3.10 raises ValueError for NUL
        for statement in statements:
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


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    value: Any = None
    match node:
        case ast.Constant():
            return node.value
        case ast.List() | ast.Tuple():
            items = [_value(item, names) for item in node.elts]
            return items if isinstance(node, ast.List) else tuple(items)
        case ast.Dict():
            value = _dict(zip(node.keys, node.values, strict=True), names)
        case ast.Call(func=ast.Name("dict"), args=[]):
            keys = [ast.Constant(item.arg) if item.arg else None for item in node.keywords]
            value = _dict(zip(keys, (item.value for item in node.keywords), strict=True), names)
        case ast.Name() if node.id in names:
            return names[node.id]
        case ast.UnaryOp(op=ast.USub()) if is_number(number := _value(node.operand, names)):
            return -number
        case ast.BinOp():
            value = _combine(node.op, _value(node.left, names), _value(node.right, names))
    return UnparsedExpression(_source(node)) if value is None else value


def _combine(operation: ast.operator, left: Any, right: Any) -> Any:
    """Return the result of an operation, or None if it is unknown or too large."""
    if isinstance(operation, ast.Add) and type(left) is type(right) in (str, list, tuple):
        return left + right if len(left) + len(right) <= _MAX_LENGTH else None
    if type(operation) not in _NUMBERS or not (is_number(left) and is_number(right)):
        return None
    try:
        value = _NUMBERS[type(operation)](left, right)
    except ArithmeticError:
        return None
    return value if abs(value) <= _MAX_NUMBER else None


def _dict(
    pairs: Iterable[tuple[ast.expr | None, ast.expr]], names: Mapping[str, Any]
) -> dict[Any, Any] | None:
    """Evaluate the pairs of a dict; the key of `**value` is None. None: a part is unknown."""
    merged: dict[Any, Any] = {}
    for key, expression in pairs:
        name, value = key and _value(key, names), _value(expression, names)
        if isinstance(name, (str, int)):
            merged[name] = value
        elif key is None and isinstance(value, dict):
            merged |= value
        else:
            return None
    return merged


def is_number(value: Any) -> bool:
    """True for int and float, not for bool."""
    return type(value) in (int, float)


def _source(node: ast.AST) -> str:
    text = ast.unparse(node).splitlines()[0]
    return text if len(text) <= 60 else f"{text[:57]}..."
