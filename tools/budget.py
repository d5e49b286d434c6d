"""Count what one has to read to understand detlite, and list the files of a training run.

Run `python tools/budget.py` to print the counts and their limits, and `python tools/budget.py
--write` to update the list in docs/architecture.md. Tests check the limits and the list.
"""

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
_BEGIN, _END = "<!-- begin of the reading list -->\n", "<!-- end of the reading list -->\n"

# Stages of a run in the order in which to read them, with the packages and modules of each.
_STAGES = {
    "The command": ("apps", "api.py", "__init__.py"),
    "The run and its loop": ("engine",),
    "The config": ("config",),
    "Images and targets": ("data",),
    "The model": ("modeling",),
    "Operators": ("ops",),
    "Records": ("structures",),
    "Evaluation": ("evaluation", "inference"),
    "Checkpoints": ("checkpoint", "conversion"),
    "Files, and modules that all packages use": ("files", ""),
}
_PREPARE = """
import sys
from detlite.config import load_config
from detlite.data import build_test_datasets, build_train_dataset

cfg = load_config(sys.argv[2], sys.argv[3:])
build_train_dataset(cfg), build_test_datasets(cfg)
"""


@dataclass(frozen=True)
class DemoRun:
    """What the first iterations of the demo load.

    Attributes:
        modules: lines of each file of detlite, each before those that it imports.
        calls: files from tools/train_net.py to RoIAlign in the order of the calls.
    """

    modules: dict[Path, int]
    calls: list[Path]


def run_demo(folder: Path) -> DemoRun:
    """Train two iterations of the demo in a new process, on a few images written to `folder`.

    The images and their index exist before, as in every run on a dataset but the first.
    """
    splits = {"train": 8, "test": 2}
    catalog = [
        {"name": f"shapes_{split}", "type": "shapes", "path": "shapes", "split": split,
         "images": count, "seed": 1}
        for split, count in splits.items()
    ]  # fmt: skip
    command = [
        sys.executable, "tools/train_net.py", "--config", "configs/demo_shapes.yaml",
        "OUTPUT_DIR", str(folder / "run"), "MODEL.DEVICE", "cpu", "DATASETS.ROOT", str(folder),
        "DATASETS.CATALOG", str(catalog), "SOLVER.HOOKS", "['ListModules']",
        "IMPORTS", str([str(ROOT / "tools" / "list_modules.py")]),
    ]  # fmt: skip
    prepare = [sys.executable, "-c", _PREPARE, *command[2:]]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DETLITE_CACHE": str(folder / "cache")}
    for words in (prepare, command):
        subprocess.run(words, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=True)
    content = json.loads((folder / "run" / "modules.json").read_text())
    files = [Path(name).relative_to(ROOT) for name in content["modules"]]
    calls = [(ROOT / name).relative_to(ROOT) for name in content["calls"]]
    return DemoRun({file: _lines(file) for file in files}, calls)


def closure(module: str) -> dict[Path, int]:
    """Return the lines of each file that importing a module of detlite loads.

    Only imports at the top of a module count, not those in functions.
    """
    found: dict[Path, int] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        file = _file_of(name)
        if file is None or file in found:
            continue
        found[file] = _lines(file)
        parents = name.split(".")[:-1]
        waiting += [".".join(parents[: n + 1]) for n in range(len(parents))]
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        waiting += _imported_names(package, ast.parse((ROOT / file).read_text()).body)
    return found


def _imported_names(package: str, body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*(parents if node.level else []), *filter(None, [node.module])])
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _imported_names(package, node.orelse)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            parts = [node.body, getattr(node, "orelse", []), getattr(node, "finalbody", [])]
            parts += [handler.body for handler in getattr(node, "handlers", [])]
            for part in parts:
                yield from _imported_names(package, part)


def _file_of(module: str) -> Path | None:
    base = Path(*module.split("."))
    files = (base.with_suffix(".py"), base / "__init__.py")
    return next((f for f in files if f.parts[0] == "detlite" and (ROOT / f).is_file()), None)


def included_files(source: str) -> list[Path]:
    """Return a C++ file and all files of csrc that it includes, directly or indirectly."""
    found: list[Path] = []
    waiting = [ROOT / source]
    while waiting:
        file = waiting.pop(0)
        if file not in found:
            found.append(file)
            names = re.findall(r'^#include "(.*)"', file.read_text(), re.M)
            places = ([file.parent / name, ROOT / "csrc" / name] for name in names)
            waiting += [next(p.resolve() for p in both if p.exists()) for both in places]
    return [file.relative_to(ROOT) for file in found]


def budgets(demo: DemoRun) -> list[tuple[str, int, int]]:
    """Return (what is counted, its number, the limit) for each limit."""
    from detlite.config import KEYS

    rcnn, trainer = closure("detlite.modeling.rcnn"), closure("detlite.engine.trainer")
    package = {file: _lines(file) for file in _python_files("detlite")}
    core = [lines for file, lines in package.items() if file.parts[1] != "apps"]
    kernel = next(file for file in (ROOT / "csrc").rglob("roi_align.cpp"))
    return [
        ("modules that training the demo loads", len(demo.modules), 130),
        ("lines that training the demo loads", sum(demo.modules.values()), 15_000),
        ("modules that detlite.modeling.rcnn imports", len(rcnn), 65),
        ("lines that detlite.modeling.rcnn imports", sum(rcnn.values()), 7_500),
        ("modules that detlite.engine.trainer imports", len(trainer), 120),
        ("lines that detlite.engine.trainer imports", sum(trainer.values()), 14_000),
        ("Python files from tools/train_net.py to RoIAlign", len(demo.calls), 11),
        ("C++ files of its kernel on the CPU", len(included_files(str(kernel))), 9),
        ("lines of detlite", sum(package.values()), 38_000),
        ("lines of its core, without apps", sum(core), 25_500),
        ("lines of tests", sum(map(_lines, _python_files("tests"))), 48_000),
        ("config keys", len(KEYS), 230),
    ]


def reading_list(demo: DemoRun) -> str:
    """Return the files of a training run in reading order, as one Markdown table per stage.

    Within a stage, a file comes before the files that it imports. Files of one line are left out.
    """
    blocks = []
    waiting = {file: lines for file, lines in demo.modules.items() if lines > 1}
    for stage, parts in _STAGES.items():
        files = [f for f in waiting if f.parts[1] in parts or ("" in parts and len(f.parts) == 2)]
        lines = [waiting.pop(file) for file in files]
        rows = [
            f"**{stage}** ({sum(lines):,} lines)\n",
            "| file | lines | content |",
            "|---|---|---|",
        ]
        for file, number in zip(files, lines, strict=True):
            name = f"[`{file.relative_to('detlite').as_posix()}`](../{file.as_posix()})"
            rows.append(f"| {name} | {number} | {_summary(file)} |")
        blocks.append("\n".join(rows) + "\n")
    assert not waiting
    return "\n".join(blocks)


def _summary(file: Path) -> str:
    """Return the first line of the docstring of a file, for a cell of a table."""
    docstring = ast.get_docstring(ast.parse((ROOT / file).read_text())) or ""
    return docstring.partition("\n")[0].replace("|", "\\|")


def listed_files(page: str) -> dict[str, int]:
    """Return the lines of each file in the reading list of docs/architecture.md."""
    text = page.split(_BEGIN)[1].split(_END)[0]
    return {name: int(lines) for name, lines in re.findall(r"`(\S+\.py)`\]\(\S+\) \| (\d+)", text)}


def write_reading_list(demo: DemoRun) -> None:
    """Replace the reading list in docs/architecture.md."""
    before, rest = PAGE.read_text().split(_BEGIN)
    PAGE.write_text(before + _BEGIN + "\n" + reading_list(demo) + "\n" + _END + rest.split(_END)[1])


def _python_files(folder: str) -> list[Path]:
    return [file.relative_to(ROOT) for file in sorted((ROOT / folder).rglob("*.py"))]


def _lines(file: Path) -> int:
    return len((ROOT / file).read_text().splitlines())


def main() -> None:
    """Print all counts with their limits, or update the page with `--write`."""
    with tempfile.TemporaryDirectory() as folder:
        demo = run_demo(Path(folder))
    if "--write" in sys.argv[1:]:
        write_reading_list(demo)
    for name, number, limit in budgets(demo):
        print(f"{name:50} {number:7,} {limit:7,} {'' if number <= limit else 'exceeded'}".rstrip())
    print("\nto RoIAlign:", *demo.calls, sep="\n  ")


if __name__ == "__main__":
    main()
