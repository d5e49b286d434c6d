"""How much code there is to read, and how its modules import each other."""

import pytest

from tools import budget


def test_no_limit_is_exceeded():
    """`make budget` prints all numbers, and `python tools/budget.py --list` what is behind them."""
    measured = budget.measure()
    assert not {name: n for name, n in measured.items() if n > budget.LIMITS[name]}


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('"""A module."""\n\nx = 1  # one\n', 1),
        ('def f():\n    """Return."""\n    return (\n        1\n    )\n', 4),
        ('class A:\n    """Two\n    lines."""\n\n    # A comment.\n    text = """a\n\nb"""\n', 4),
    ],
)
def test_lines_of_code(text, lines):
    assert budget.code_lines(text) == lines


def test_imports_and_circles(tmp_path):
    files = {
        "__init__": "",
        "a": "from . import b\n",
        "b": "def f():\n    from package.a import x\n    import package.sub.c\n",
        "sub/__init__": "",
        "sub/c": "if TYPE_CHECKING:\n    from ..a import x\nelse:\n    from package import d\n",
        "d": "import sys, package.d\n",
    }
    for name, text in files.items():
        file = tmp_path / "package" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    modules = budget.read_modules(tmp_path, "package")
    assert modules["package.b"].inner == ["package.a", "package.sub.c"]
    assert modules["package.sub.c"].types == ["package.a"]
    assert budget.circles(modules) == [["package.a", "package.b"]]
    needed = {"package", "package.a", "package.b", "package.sub", "package.sub.c", "package.d"}
    assert budget.needed_by("package.a", modules) == needed
