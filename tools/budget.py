"""Measure how much code there is to read, and whether its imports tell what it needs.

Run `python tools/budget.py` to print the measures with their limits, and the imports, circles and
small modules behind them with `--list`. Lines of code are lines without blank ones, comments and
docstrings.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
APPS = "detlite.apps"

LIMITS = {
    "lines of code": 28_430,
    "lines of code of the core": 19_560,
    "imports of own modules in functions of the core": 5,
    "imports of own modules for types only": 10,
    "circles of modules": 0,
    "lines of code that engine.trainer needs": 7_505,
    "lines of tests": 43_760,
    "lines of benchmark programs": 3_500,
    "config keys": 225,
}

_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip


def code_lines(text: str) -> int:
    """Count the lines of code of a Python file."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                lines -= {*range(value.lineno, (value.end_lineno or 0) + 1)}
    return len(lines)


@dataclass
class Module:
    """A module of the package, and the modules of the package that it imports.

    Attributes:
        code: its lines of code.
        imports: at its top and in functions, with the packages of these modules.
        inner: in functions.
        types: under TYPE_CHECKING only.
    """

    code: int
    imports: set[str] = field(default_factory=set)
    inner: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)


def read_modules(root: Path, package: str = "detlite") -> dict[str, Module]:
    """Read all modules of a package by name."""
    files = {}
    for file in sorted((root / package).rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    modules = {}
    for name, file in files.items():
        text = file.read_text()
        modules[name] = module = Module(code_lines(text))
        parent = name if file.name == "__init__.py" else name.rpartition(".")[0]
        for names, kind in _import_statements(ast.parse(text), parent):
            if not (own := [other for other in names if other in files and other != name]):
                continue
            if kind != "types":
                module.imports |= {*own}
            if kind != "top":
                getattr(module, kind).append(max(own, key=len))
    return modules


def _import_statements(
    node: ast.AST, package: str, kind: str = "top"
) -> Iterator[tuple[list[str], str]]:
    """Yield the names of each import statement, and where it is: "top", "inner" or "types"."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield [alias.name for alias in child.names], kind
        elif isinstance(child, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - child.level + 1]
            base = ".".join([*(parts if child.level else []), *filter(None, [child.module])])
            yield [base, *(f"{base}.{alias.name}" for alias in child.names)], kind
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _import_statements(ast.Module(child.body, []), package, "types")
            yield from _import_statements(ast.Module(child.orelse, []), package, kind)
        else:
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _import_statements(child, package, "inner" if is_function else kind)


def needed_by(name: str, modules: dict[str, Module], with_packages: bool = True) -> set[str]:
    """Return the modules that a module imports, directly or indirectly."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        others = {*modules[current].imports}
        if with_packages:
            others |= {parent for parent in (current.rpartition(".")[0],) if parent in modules}
        waiting += others - found
        found |= others
    return found


def circles(modules: dict[str, Module]) -> list[list[str]]:
    """Return the groups of modules that import each other."""
    needed = {name: needed_by(name, modules, with_packages=False) for name in modules}
    groups = {
        frozenset(other for other in needed[name] if name in needed[other])
        for name in modules
        if name in needed[name]
    }
    return sorted(map(sorted, groups))


def measure(root: Path = ROOT) -> dict[str, int]:
    """Return the measures by the names of LIMITS."""
    from detlite.config import KEYS

    modules = read_modules(root)
    core = [module for name, module in modules.items() if not name.startswith(APPS)]
    trainer = {"detlite.engine.trainer", *needed_by("detlite.engine.trainer", modules)}
    lines = {
        folder: sum(len(f.read_text().splitlines()) for f in (root / folder).rglob("*.py"))
        for folder in ("tests", "benchmarks")
    }
    numbers = (
        sum(module.code for module in modules.values()),
        sum(module.code for module in core),
        sum(len(module.inner) for module in core),
        sum(len(module.types) for module in modules.values()),
        len(circles(modules)),
        sum(modules[name].code for name in trainer),
        lines["tests"],
        lines["benchmarks"],
        len(KEYS),
    )
    return dict(zip(LIMITS, numbers, strict=True))


def main() -> None:
    """Print the measures with their limits."""
    for name, number in measure().items():
        exceeded = "" if number <= LIMITS[name] else "exceeded"
        print(f"{name:50} {number:7,} {LIMITS[name]:7,} {exceeded}".rstrip())
    if "--list" in sys.argv[1:]:
        modules = read_modules(ROOT)
        for group in circles(modules):
            print("circle:", *group)
        for name, module in modules.items():
            for other in module.inner:
                print(f"in a function: {name} imports {other}")
            for other in module.types:
                print(f"for types: {name} imports {other}")


if __name__ == "__main__":
    main()
