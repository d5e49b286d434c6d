"""Check the code of the documentation: Python blocks run, and commands have valid options.

The Python blocks of a page run one after another in a folder with a tiny model and a small data
set. A block after the comment `<!-- not run: reason -->` does not run, but its names and the
arguments of its calls are checked.
"""

import argparse
import ast
import functools
import importlib
import importlib.util
import inspect
import json
import re
import runpy
import shlex
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from PIL import Image
from torch.distributed.run import get_args_parser

import detlite
from benchmarks.__main__ import main as benchmarks_main
from detlite.apps.cli.main import COMMANDS, run_command
from detlite.config import KEYS, ConfigError, load_config
from detlite.config.maskrcnn_benchmark import NO_EFFECT, RESTATING
from detlite.registry import Registry

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "configs/README.md")),
    ROOT / "csrc" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "benchmarks" / "results").rglob("*.md")),
]
# Another test runs the Python code of these pages.
RUN_ELSEWHERE = {"extending.md": "tests/modeling/test_extending_docs.py"}
_KEYS = {key.name for key in KEYS} | NO_EFFECT.keys() | RESTATING.keys()


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    code: str
    not_run: str  # reason; empty if the block runs


def blocks(page: Path, *languages: str) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    fence = r"(?:^<!-- not run: ([^>]+) -->\n+)?^```(\w+)\n(.*?)^```"
    return [
        Block(page, text[: match.start(3)].count("\n"), match[2], match[3], match[1] or "")
        for match in re.finditer(fence, text, re.MULTILINE | re.DOTALL)
        if match[2] in languages
    ]


def pages_with(*languages: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, *languages)]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


# --- Python ---------------------------------------------------------------------------------------


@pytest.fixture
def reader(
    tmp_path: Path,
    tiny_config: Callable[..., Any],
    make_coco_dataset: Callable[..., tuple[Path, Path]],
    monkeypatch: pytest.MonkeyPatch,
) -> dict[str, Any]:
    """Create the files that pages mention; return the variables that they use without defining."""
    annotations, images = make_coco_dataset("cells", images=4)
    monkeypatch.chdir(tmp_path)
    Path("configs").symlink_to(ROOT / "configs")
    annotations.rename("train.json")
    images.rename("photos")
    image = Image.open("photos/1.png").convert("RGB")
    image.save("photo.jpg")
    cfg = tiny_config("MODEL.ROI_BOX_HEAD.NUM_CLASSES", 3)
    files = {"annotations": "train.json", "images": "photos"}
    training: dict[str, Any] = {
        "MODEL.ROI_BOX_HEAD.NUM_CLASSES": 3,
        "DATASETS.ROOT": ".",
        "DATASETS.CATALOG": [{"name": "train", **files}, {"name": "val", **files}],
        "DATASETS.TRAIN": ["train"],
        "DATASETS.TEST": ["val"],
        "DATALOADER.NUM_WORKERS": 0,
        "INPUT.MIN_SIZE_TRAIN": [96],
        "INPUT.MIN_SIZE_TEST": 96,
        "SOLVER.IMS_PER_BATCH": 2,
        "SOLVER.MAX_ITER": 3,
        "SOLVER.LOG_PERIOD": 1,
    }
    overrides = [item for pair in training.items() for item in pair]
    Path("cells.yaml").write_text(tiny_config(*overrides).dump())
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    model = detlite.build_model(cfg)
    checkpoint = {
        "model": model.state_dict(),
        "config": cfg.dump(),
        "categories": categories,
        "convention": "detlite",
    }
    pages = [Image.new("L", (16, 12), level) for level in (0, 50, 100, 150)]
    pages[0].save("stack.tif", save_all=True, append_images=pages[1:])
    Path("output/demo").mkdir(parents=True)
    torch.save(checkpoint, "output/demo/model_final.pth")
    boxes = torch.tensor([[10.0, 20.0, 50.0, 60.0]])
    masks = torch.zeros(1, 96, 128, dtype=torch.bool)
    masks[0, 20:60, 10:50] = True
    target = {"boxes": boxes, "labels": torch.tensor([1]), "masks": masks}
    batch = {"images": [torch.rand(3, 96, 128)], "targets": [target]}
    return {"detlite": detlite, "cfg": cfg, **batch, **target}


@pytest.fixture
def temporary_registrations(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what the code of a page registers, because other tests register the same names."""
    register = Registry.register
    added: list[tuple[Registry[Any], str]] = []

    def record(registry: Registry[Any], *names: str) -> Callable[[Any], Any]:
        added.extend((registry, name) for name in names)
        return register(registry, *names)

    monkeypatch.setattr(Registry, "register", record)
    yield
    for registry, name in added:
        # Modules of detlite that a page imports stay imported.
        if not str(registry._builders[name].__module__).startswith("detlite"):
            del registry._builders[name]


@pytest.mark.usefixtures("temporary_registrations", "without_drawings")
@pytest.mark.parametrize("page", pages_with("python"), ids=name)
def test_python_runs(page, reader):
    if page.name in RUN_ELSEWHERE:
        assert page.name in (ROOT / RUN_ELSEWHERE[page.name]).read_text()
        return
    for block in blocks(page, "python"):
        if not block.not_run:
            where = f"{name(page)}, line {block.line}"
            try:
                exec(compile("\n" * block.line + block.code, where, "exec"), reader)
            except ModuleNotFoundError as error:
                if (error.name or "").startswith("detlite"):
                    raise
                pytest.skip(str(error))
            except ConfigError as error:
                if not isinstance(error.__cause__, ImportError):
                    raise
                pytest.skip(str(error))


def check_names(code: str) -> None:
    """Raise an error if the code uses a name or an argument of detlite that does not exist."""
    tree = ast.parse(code)
    known: dict[str, Any] = {"detlite": detlite}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            try:
                exec(compile(ast.Module([node], []), "import", "exec"), known)
            except ModuleNotFoundError as error:
                if (error.name or "").startswith("detlite"):
                    raise
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            resolve(node, known)
        if isinstance(node, ast.Call):
            called = resolve(node.func, known)
            if inspect.isfunction(called) and called.__module__.startswith("detlite"):
                names = [keyword.arg for keyword in node.keywords if keyword.arg]
                inspect.signature(called).bind_partial(*node.args, **dict.fromkeys(names))


def resolve(node: ast.AST, known: dict[str, Any]) -> Any:
    """Return the object of a dotted name; None if it is known only when the code runs."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = resolve(node.value, known)
        if isinstance(owner, types.ModuleType | type):
            return getattr(owner, node.attr)
    return None


@pytest.mark.parametrize("page", pages_with("python"), ids=name)
def test_names_in_python_exist(page):
    for block in blocks(page, "python"):
        check_names(block.code)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("detlite.trian()", AttributeError),
        ("detlite.train(minute=15)", TypeError),
        ("from detlite.ops import roi_aling", ImportError),
        ("from detlite import ops\nops.nms(1, 2, 3, 4)", TypeError),
    ],
)
def test_unknown_names_fail(code, error):
    with pytest.raises(error):
        check_names(code)


@pytest.mark.parametrize("page", pages_with("json"), ids=name)
def test_json_is_valid(page):
    for block in blocks(page, "json"):
        json.loads(block.code)


# --- Commands -------------------------------------------------------------------------------------


class Parsed(BaseException):
    """Raised instead of running a command; no command catches a BaseException."""

    def __init__(self, parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
        self.parser, self.options = parser, options


@pytest.fixture
def parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    """End commands after they have parsed their arguments."""
    for method in ("parse_args", "parse_intermixed_args"):
        read = getattr(argparse.ArgumentParser, method)

        @functools.wraps(read)
        def stopping(self: Any, *args: Any, read: Any = read, **kwargs: Any) -> None:
            raise Parsed(self, read(self, *args, **kwargs))

        monkeypatch.setattr(argparse.ArgumentParser, method, stopping)


def commands(code: str) -> Iterator[list[str]]:
    """Yield the words of each command in shell code, without comments and redirections."""
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            del words[0]
        ends = [index for index, word in enumerate(words) if word in (">", "2>", "|", "&&", "&")]
        if words:
            yield words[: ends[0]] if ends else words


def check_command(words: list[str]) -> None:
    """Raise an error for an unknown program, option, config, key, file, extra or make target."""
    program, *arguments = words
    if program == "detlite":
        check_detlite(arguments)
    elif program == "torchrun":
        args, _ = get_args_parser().parse_known_args(arguments)
        assert (args.module, args.training_script) == (True, "detlite"), words
        check_detlite(args.training_script_args)
    elif program == "python" and arguments[:2] == ["-m", "benchmarks"]:
        with pytest.raises(Parsed) as error:
            benchmarks_main(arguments[2:])
        check_configs(error.value.options)
    elif program == "python" and arguments[0] == "-m":
        assert importlib.util.find_spec(arguments[1]), words
    elif program == "python" and arguments[0] != "-c":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", arguments)
            patch.syspath_prepend(str((ROOT / arguments[0]).parent))
            with pytest.raises(Parsed):
                runpy.run_path(str(ROOT / arguments[0]), run_name="__main__")
    elif program == "pip":
        known = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
        for extras in re.findall(r"(?:detlite|\.)\[([\w,]+)\]", " ".join(arguments)):
            assert set(extras.split(",")) <= set(known), words
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in arguments if "=" not in word} <= set(targets), words


def check_detlite(arguments: list[str]) -> None:
    command, *arguments = arguments
    assert command in COMMANDS
    try:
        run_command(command, arguments)
    except Parsed as parsed:
        check_configs(parsed.options)
    else:
        raise AssertionError(f"detlite {command} did not parse its arguments")


def check_configs(args: argparse.Namespace) -> None:
    """Check the names of overrides, and their values if the config is one of the repository."""
    opts = getattr(args, "overrides", None) or []
    assert len(opts) % 2 == 0, opts
    assert set(opts[::2]) <= _KEYS, opts
    config = getattr(args, "config", None) or ""
    if config.startswith("configs/"):
        load_config(ROOT / config, [] if "IMPORTS" in opts else opts)


@pytest.mark.usefixtures("parsing")
@pytest.mark.parametrize("page", pages_with("sh", "console"), ids=name)
def test_commands_parse(page, capsys):
    for block in blocks(page, "sh", "console"):
        code = block.code
        if block.language == "console":  # the other lines are output
            code = "\n".join(re.findall(r"^\$ .*(?:\\\n.*)*", code, re.MULTILINE))
        for words in commands(code):
            try:
                check_command(words)
            except SystemExit:
                pytest.fail(f"{name(page)}: {shlex.join(words)}: {capsys.readouterr().err}")


@pytest.mark.usefixtures("parsing")
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_options_in_sentences_exist(page):
    """Check commands within sentences, such as `detlite predict --threshold`."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for command, rest in re.findall(r"`detlite ([a-z-]+)([^`]*)`", text):
        assert command in COMMANDS, f"{name(page)}: detlite {command}"
        options = {word.partition("=")[0] for word in rest.split() if word.startswith("--")}
        if options:
            assert options <= options_of(command), f"{name(page)}: detlite {command}{rest}"


@pytest.mark.usefixtures("parsing")
def test_benchmark_commands_in_sentences_parse():
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks" / "results").rglob("*.md")]
    count = 0
    for page in pages:
        for command in re.findall(r"`(python -m benchmarks [^`]+)`", page.read_text()):
            check_command(shlex.split(command))
            count += 1
    assert count >= 12


def options_of(command: str) -> set[str]:
    with pytest.MonkeyPatch.context() as patch:
        seen: set[str] = set()

        def keep(self: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
            seen.update(self._option_string_actions)
            for action in self._actions:
                if isinstance(action, argparse._SubParsersAction):
                    for part in action.choices.values():
                        seen.update(part._option_string_actions)
            raise Parsed(self, argparse.Namespace())

        for method in ("parse_args", "parse_intermixed_args"):
            patch.setattr(argparse.ArgumentParser, method, keep)
        with pytest.raises(Parsed):
            run_command(command, [])
    return seen


@pytest.mark.usefixtures("parsing")
@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("detlite tarin --config a.yaml", AssertionError),
        ("detlite train --confg a.yaml", SystemExit),
        ("detlite train --config a.yaml SOLVER.BASE_RL 1", AssertionError),
        ("detlite train --config configs/none.yaml", ConfigError),
        ("torchrun --nproc-per-node 2 -m detlite test --conf a.yaml --nope", SystemExit),
        ("python tools/none.py", FileNotFoundError),
        ('pip install "detlite[none]"', AssertionError),
        ("make none", AssertionError),
    ],
)
def test_invalid_commands_fail(line, error):
    with pytest.raises(error):
        check_command(next(commands(line)))
