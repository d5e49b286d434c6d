"""Check the import order of the package: each part can be read, tested and replaced separately."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

# A part imports itself and the parts to its left.
ORDER = (
    "files", "config", "structures", "ops", "modeling", "data", "evaluation", "checkpoint",
    "conversion", "inference", "engine", "apps",
)  # fmt: skip
# Small modules that every part may import. They import one another only.
SHARED = {"conventions", "distributed", "errors", "registry", "threads"}
ALLOWED = {
    **{part: {*ORDER[: index + 1], *SHARED} for index, part in enumerate(ORDER)},
    **dict.fromkeys(SHARED, SHARED),
    # The public names.
    "__init__": {"ops", "apps", "config", "errors", "inference", "modeling", "threads"},
    "__main__": {"apps"},
}
ALLOWED["files"], ALLOWED["config"] = {"files"}, {"files", "config", *SHARED}
COMPILED = "_C"  # imported by `ops` alone
MODULE_NAME = re.compile(r"detlite(\.[a-z]\w*)+(:\w+)?")
# Imports against the order.
EXCEPTIONS = {
    # Registries, which import a module when a config names its part.
    ("data/datasets/catalog.py", "apps"),
    ("engine/hooks/__init__.py", "apps"),
    # Reads files of other frameworks, too; conversion imports `checkpoint/contents.py` only.
    ("checkpoint/files.py", "conversion"),
    ("inference/prediction.py", "apps"),  # methods that draw and export a prediction
    ("inference/predictor.py", "apps"),  # reads exported models
}


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield each source file of the package with the part it belongs to."""
    package = root / "detlite"
    for file in sorted(package.rglob("*.py")):
        yield file.relative_to(package).parts[0].removesuffix(".py"), file


@cache
def _imported_modules(file: Path, root: Path) -> set[str]:
    """Return the dotted names that a file imports, with relative imports made absolute.

    A string that is the name of a module counts, because code may import it by this name.
    """
    names = set()
    package = file.relative_to(root).parts[:-1]
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*start, *([node.module] if node.module else [])])
            names.update(f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.update({node.value} if MODULE_NAME.fullmatch(node.value) else ())
    return names


def _imported_parts(file: Path, root: Path) -> set[str]:
    names = (name.split(".") for name in _imported_modules(file, root))
    return {name[1] for name in names if name[0] == "detlite" and len(name) > 1}


def test_every_part_is_known(repo_root):
    assert {part for part, _ in _files(repo_root)} == ALLOWED.keys()


def test_imports_follow_the_order(repo_root):
    wrong = [
        f"{file.relative_to(repo_root)} imports detlite.{other}"
        for part, file in _files(repo_root)
        for other in sorted(_imported_parts(file, repo_root) - {"__version__"})
        if other not in ALLOWED[part]
        and not (part == "ops" and other == COMPILED)
        and (file.relative_to(repo_root / "detlite").as_posix(), other) not in EXCEPTIONS
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("other", ["benchmarks", "tools", "tests"])
def test_the_package_imports_nothing_around_it(repo_root, other):
    for _, file in _files(repo_root):
        assert other not in {name.split(".")[0] for name in _imported_modules(file, repo_root)}


def test_only_distributed_uses_torch_distributed(repo_root):
    for part, file in _files(repo_root):
        if part != "distributed":
            assert "torch.distributed" not in file.read_text(), file
            assert "DistributedDataParallel(" not in file.read_text(), file


def test_modules_do_not_read_the_config(repo_root):
    """Functions build modules from a config; classes in `modeling` take explicit arguments."""
    for file in (repo_root / "detlite" / "modeling").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(), str(file))):
            if isinstance(node, ast.ClassDef):
                names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
                assert not names & {"cfg", "CfgNode"}, f"{file}: {node.name}"


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("from ..registry import Registry", {"registry"}),
        ("from .rpn import RPN", {"modeling"}),
        ("from ..structures import boxes as box_ops", {"structures"}),
        ("from .. import engine", {"engine"}),
        ("import detlite.engine.trainer", {"engine"}),
        ("from detlite import _C", {"_C"}),
        ("def f():\n    from ..data import x", {"data"}),
        ("resolve_name('detlite.apps.api:train')", {"apps"}),
        ("print('detlite.apps is a package')", set()),
        ("import torch", set()),
    ],
)
def test_imports_are_recognized(tmp_path, source, parts):
    file = tmp_path / "detlite" / "modeling" / "some.py"
    file.parent.mkdir(parents=True)
    file.write_text(source)
    assert _imported_parts(file, tmp_path) == parts
