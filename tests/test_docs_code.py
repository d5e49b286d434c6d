"""Check the code of the documentation: Python blocks run, and commands have valid options.

The Python blocks of a page run one after another in a folder with a tiny model and a small data
set. A block after the comment `<!-- not run: reason -->` does not run, but its names are checked.
"""

import ast
import importlib.util
import json
import pkgutil
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from PIL import Image
from torch.distributed.run import get_args_parser

import detlite
from benchmarks.__main__ import _parser as benchmarks_parser
from detlite.apps.cli.main import COMMANDS, build_parser
from detlite.apps.cli.options import collect_overrides
from detlite.config import KEYS, ConfigError, load_config
from detlite.config.maskrcnn_benchmark import RESTATING
from detlite.config.removed import NO_EFFECT
from detlite.registry import Registry
from tests.builders import write_weights
from tests.test_docs import PAGES, ROOT, page_name, without_code

_KEYS = {key.name for key in KEYS} | NO_EFFECT.keys() | RESTATING.keys()


class Block(NamedTuple):
    line: int
    code: str
    not_run: str  # reason; empty if the block runs


def blocks(page: Path, language: str) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    fence = rf"(?:^<!-- not run: ([^>]+) -->\n+)?^```{language}\n(.*?)^```"
    return [
        Block(text[: match.start(2)].count("\n"), match[2], match[1] or "")
        for match in re.finditer(fence, text, re.MULTILINE | re.DOTALL)
    ]


def pages_with(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


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
    Image.open("photos/1.png").convert("RGB").save("photo.jpg")
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
    Path("cells.yaml").write_text(tiny_config(*sum(training.items(), ())).dump())
    cfg = tiny_config("MODEL.ROI_BOX_HEAD.NUM_CLASSES", 3)
    Path("output/demo").mkdir(parents=True)
    write_weights(cfg, Path("output/demo/model_final.pth"), {1: "cat", 2: "dog"})
    stack = [Image.new("L", (16, 12), level) for level in (0, 50, 100, 150)]
    stack[0].save("stack.tif", save_all=True, append_images=stack[1:])
    boxes, masks = torch.tensor([[10.0, 20.0, 50.0, 60.0]]), torch.ones(1, 96, 128).bool()
    target = {"boxes": boxes, "labels": torch.tensor([1]), "masks": masks}
    return {"detlite": detlite, "cfg": cfg, **target}


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
@pytest.mark.parametrize("page", pages_with("python"), ids=page_name)
def test_python_runs(page, reader):
    if page.name in ("extending.md", "write_a_detector.md"):
        pytest.skip("tests/modeling/test_extending_docs.py runs it")
    for block in blocks(page, "python"):
        if not block.not_run:
            where = f"{page_name(page)}, line {block.line}"
            try:
                exec(compile("\n" * block.line + block.code, where, "exec"), reader)
            except (ModuleNotFoundError, ConfigError) as error:
                cause = error if isinstance(error, ModuleNotFoundError) else error.__cause__
                if not isinstance(cause, ImportError) or "detlite" in (cause.name or ""):
                    raise
                pytest.skip(str(error))


def check_names(code: str) -> None:
    """Raise an error if the code imports or uses a name of detlite that does not exist."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import | ast.ImportFrom) and "detlite" in ast.unparse(node):
            exec(ast.unparse(node), {})
    for name in re.findall(r"(?<![\w./])detlite(?:\.\w+)+", code):
        pkgutil.resolve_name(name)


@pytest.mark.parametrize("page", pages_with("python"), ids=page_name)
def test_names_in_python_exist(page):
    for block in blocks(page, "python"):
        check_names(block.code)


@pytest.mark.parametrize("page", pages_with("json"), ids=page_name)
def test_json_is_valid(page):
    for block in blocks(page, "json"):
        json.loads(block.code)


def commands(code: str) -> Iterator[list[str]]:
    """Yield the words of each command in shell code, without comments and redirections."""
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            del words[0]
        ends = [index for index, word in enumerate(words) if word in (">", "2>", "|", "&&", "&")]
        if words:
            yield words[: ends[0]] if ends else words


def check_command(words: list[str]) -> None:
    """Raise an error for an unknown program, option, config, key, file, extra or make target."""
    program, *arguments = words
    if program == "detlite":
        check_detlite(*arguments)
    elif program == "torchrun":
        args, _ = get_args_parser().parse_known_args(arguments)
        assert (args.module, args.training_script) == (True, "detlite"), words
        check_detlite(*args.training_script_args)
    elif program == "python" and arguments[:2] == ["-m", "benchmarks"]:
        check_keys(getattr(benchmarks_parser().parse_args(arguments[2:]), "opts", []))
    elif program == "python" and arguments[0] == "-m":
        assert importlib.util.find_spec(arguments[1]), words
    elif program == "python" and arguments[0] != "-c":
        assert (ROOT / arguments[0]).is_file(), words
    elif program == "pip":
        known = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
        for extras in re.findall(r"(?:detlite|\.)\[([\w,]+)\]", " ".join(arguments)):
            assert set(extras.split(",")) <= set(known), words
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in arguments if "=" not in word} <= set(targets), words


def check_detlite(command: str, *arguments: str) -> None:
    args = build_parser(command).parse_intermixed_args(arguments)
    if "overrides" in args:
        collect_overrides(args)
        check_keys(args.overrides)
    if (getattr(args, "config", None) or "").startswith("configs/"):
        load_config(ROOT / args.config, [] if "IMPORTS" in args.overrides else args.overrides)


def check_keys(opts: list[str]) -> None:
    assert len(opts) % 2 == 0, opts
    assert set(opts[::2]) <= _KEYS, opts


@pytest.mark.parametrize("page", pages_with("sh"), ids=page_name)
def test_commands_parse(page, capsys):
    for block in blocks(page, "sh"):
        for words in commands(block.code):
            try:
                check_command(words)
            except SystemExit:
                pytest.fail(f"{page_name(page)}: {shlex.join(words)}: {capsys.readouterr().err}")


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_in_sentences_exist(page):
    """Check commands within sentences, such as `detlite predict --threshold`."""
    text = without_code(page.read_text())
    for command, rest in re.findall(r"`detlite ([a-z-]+)([^`]*)`", text):
        assert command in COMMANDS, f"{page_name(page)}: detlite {command}"
        options = {word.partition("=")[0] for word in rest.split() if word.startswith("--")}
        known = build_parser(command)._option_string_actions
        assert options <= known.keys(), f"{page_name(page)}: detlite {command}{rest}"
    for command in re.findall(r"`(python -m benchmarks [^`]+)`", text):
        check_command(shlex.split(command))


@pytest.mark.parametrize(
    ("check", "code", "error"),
    [
        (check_names, "detlite.trian()", AttributeError),
        (check_names, "from detlite.ops import roi_aling", ImportError),
        (check_command, "detlite tarin --config a.yaml", KeyError),
        (check_command, "detlite train --confg a.yaml", SystemExit),
        (check_command, "detlite train --config a.yaml SOLVER.BASE_RL 1", AssertionError),
        (check_command, "detlite train --config configs/none.yaml", ConfigError),
        (check_command, "torchrun -m detlite test --conf a.yaml --nope", SystemExit),
        (check_command, "python tools/none.py", AssertionError),
        (check_command, 'pip install "detlite[none]"', AssertionError),
        (check_command, "make none", AssertionError),
    ],
)
def test_invalid_code_fails(check, code, error):
    with pytest.raises(error):
        check(code if check is check_names else next(commands(code)))
