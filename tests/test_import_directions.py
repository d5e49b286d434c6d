"""Imports run one way, so that each part can be read, tested and replaced alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

# Each part of detlite, and which other parts it may import.
_BASE = {"config", "convention", "structures", "ops", "distributed", "pickles", "registry"}
_MIDDLE = _BASE | {"modeling", "data"}
_TOP = _MIDDLE | {
    "benchmark",
    "conversion",
    "configuring",
    "engine",
    "evaluation",
    "inference",
    "installation",
    "integrations",
    "serving",
    "solver",
    "visualization",
}
ALLOWED = {
    "_C": set(),
    "ops": set(),
    **{part: _BASE - {"ops"} for part in _BASE - {"ops", "structures", "convention"}},
    "structures": set(),
    "convention": {"ops", "structures"},
    "modeling": _BASE | {"modeling"},
    "data": _BASE | {"data"},
    **dict.fromkeys(_TOP - _MIDDLE, _TOP),
    # The package's own face: it only names what is public.
    "__init__": {"_C", "api", "config", "interrupts", "kernels", "modeling", "ops", "inference"},
    "interrupts": set(),
    "kernels": set(),
    "api": _TOP,
    "installation": _TOP | {"_C", "__version__"},  # of which it tells
    "commands": _TOP | {"api"},
    "__main__": {"commands", "interrupts", "__version__"},
    "tools": _TOP | {"commands"},
}


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    """Every source file and the part that it belongs to."""
    package = root / "detlite"
    for file in sorted(package.rglob("*.py")):
        yield file.relative_to(package).parts[0].removesuffix(".py"), file
    for file in sorted((root / "tools").rglob("*.py")):
        yield "tools", file


def _imported_modules(file: Path, root: Path) -> Iterator[str]:
    """Dotted names of what a file imports, relative imports made absolute."""
    package = file.relative_to(root).parts[:-1]
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*start, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _imported_parts(file: Path, root: Path) -> set[str]:
    names = (name.split(".") for name in _imported_modules(file, root))
    return {name[1] for name in names if name[0] == "detlite" and len(name) > 1}


def test_every_part_is_known(repo_root):
    assert {part for part, _ in _files(repo_root)} <= ALLOWED.keys()


def test_imports_run_one_way(repo_root):
    wrong = [
        f"{file.relative_to(repo_root)} imports detlite.{other}"
        for part, file in _files(repo_root)
        for other in sorted(_imported_parts(file, repo_root) - {part})
        if part != "tools"  # a tool may also use the package's public names
        and other not in ALLOWED[part]
    ]
    assert not wrong


def test_the_package_never_imports_its_tools(repo_root):
    for part, file in _files(repo_root):
        if part != "tools":
            tops = {name.split(".")[0] for name in _imported_modules(file, repo_root)}
            assert "tools" not in tops, file


def test_only_distributed_asks_torch_distributed(repo_root):
    for part, file in _files(repo_root):
        if part != "distributed":
            assert not [
                name
                for name in _imported_modules(file, repo_root)
                if name.startswith("torch.distributed")
            ], file
            assert "torch.distributed" not in file.read_text(), file
            assert "DistributedDataParallel(" not in file.read_text(), file


def test_modules_do_not_read_the_config(repo_root):
    """Functions build modules from a config; a class of `modeling` is never given one."""
    for file in (repo_root / "detlite" / "modeling").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(), str(file))):
            if isinstance(node, ast.ClassDef):
                names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
                assert not names & {"cfg", "CfgNode"}, f"{file}: {node.name}"


# What is no kernel that detlite has itself; of published weights, the names of what they find.
_BORROWED = {
    f"torchvision.{name}"
    for name in (
        "ops.FrozenBatchNorm2d",
        "ops.box_convert",
        "ops.clip_boxes_to_image",
        "ops.deform_conv2d",
        "models.convnext.LayerNorm2d",
        "models.get_weight",
        "models.detection.KeypointRCNN_ResNet50_FPN_Weights",
        "models.detection.MaskRCNN_ResNet50_FPN_Weights",
    )
}


def test_torchvision_kernels_are_never_called(repo_root):
    for part, file in _files(repo_root):
        if part == "benchmark" or file.name == "gpu_benchmark.py":  # which measure against them
            continue
        for name in set(_imported_modules(file, repo_root)) - _BORROWED:
            assert not name.startswith(("torchvision.ops", "torchvision.models")), file


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("from ..registry import Registry", {"registry"}),
        ("from .rpn import RPN", {"modeling"}),
        ("from ..structures import boxes as box_ops", {"structures"}),
        ("from .. import engine", {"engine"}),
        ("import detlite.engine.train", {"engine"}),
        ("from detlite import _C", {"_C"}),
        ("def f():\n    from ..data import x", {"data"}),
        ("import torch", set()),
    ],
)
def test_imports_are_recognised(tmp_path, source, parts):
    file = tmp_path / "detlite" / "modeling" / "some.py"
    file.parent.mkdir(parents=True)
    file.write_text(source)
    assert _imported_parts(file, tmp_path) == parts
