"""Test that messages advise config keys and options that exist where the message is shown."""

import ast
import re

import pytest

from detlite.apps.cli.main import COMMANDS, build_parser
from detlite.config.schema import KEYS

KEY = re.compile(r"(?<![\w.])[A-Z][A-Z0-9_]*(?:\.[A-Z][A-Z0-9_]*)+")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
OF_OTHERS = {  # options of pip and docker
    "--force-reinstall", "--no-build-isolation", "--no-deps", "--shm-size", "--upgrade",
}  # fmt: skip
# The commands that show the messages of a module; of another module, any.
SHOWN_BY = {
    "apps/autoconfig": ["init"],
    "apps/batch_predict": ["predict"],
    "apps/prediction_files": ["predict"],
    "apps/dataset_check/image_groups": ["init", "train"],
    "apps/dataset_check": ["check"],
    "apps/dataset_formats/find_annotations": ["init", "train"],
    "apps/dataset_formats": ["init", "train", "check"],
    "apps/cli/removed": [],  # they belong to the command of their key
    "apps/drawing": ["train", "predict", "report", "browse", "check"],
    "apps/export/exported_detector": ["predict", "serve"],
    "apps/export": ["export"],
    "apps/report/verdict": ["train"],
    "apps/report": ["report"],
    "apps/serve": ["serve"],
    "checkpoint": ["train", "test", "predict", "serve", "convert", "export"],
    "data/loading": ["train"],
    "engine": ["train"],
    "evaluation": ["report"],
    **{
        f"{one.run.__module__[8:].replace('.', '/')}/{name}": [name]
        for name, one in COMMANDS.items()
    },
    "apps/cli/prediction": ["predict", "serve"],
    "apps/cli/options": ["train"],
}


@pytest.fixture(scope="module")
def messages(repo_root):
    """Return the module and function, and the text of each message with a key or an option."""
    found = []
    for file in sorted((repo_root / "detlite").rglob("*.py")):
        module = file.relative_to(repo_root / "detlite").with_suffix("").as_posix()
        for part in ast.parse(file.read_text()).body:
            place = f"{module}/{getattr(part, 'name', '')}"
            nodes = set(ast.walk(part))
            parts = {one for n in nodes if isinstance(n, ast.JoinedStr) for one in n.values}
            parts |= {n.value for n in nodes if isinstance(n, ast.Expr)}  # docstrings
            for node in nodes - parts:
                pieces = node.values if isinstance(node, ast.JoinedStr) else [node]
                texts = (one.value if isinstance(one, ast.Constant) else "{}" for one in pieces)
                if isinstance(node, ast.JoinedStr | ast.Constant):
                    text = "".join(map(str, texts))
                    if " " in text and (KEY.search(text) or OPTION.search(text)):
                        found.append((place, text))
    assert len(found) > 200
    return found


@pytest.fixture(scope="module")
def parsers():
    """Return the parser of each command."""
    return {name: build_parser(name) for name in COMMANDS}


def test_keys_in_messages_exist(messages):
    names = [key.name for key in KEYS]

    def exists(key, text):
        """A section counts, and the start of a name that goes on, as in PROPOSAL_FILES_{}."""
        if text == f"{key} was removed":
            return True
        start = key if f"{key}{{" in text or f"{key}*" in text else f"{key}."
        return any(name == key or name.startswith(start) for name in names)

    found = [(module, key, text) for module, text in messages for key in KEY.findall(text)]
    assert not [(module, key) for module, key, text in found if not exists(key, text)]


def test_options_in_messages_exist_in_the_commands_that_show_them(messages, parsers):
    options = {name: parser._option_string_actions for name, parser in parsers.items()}
    wrong = []
    for module, text in messages:
        shown_by = next(
            (SHOWN_BY[m] for m in SHOWN_BY if f"{module}/".startswith(f"{m}/")), COMMANDS
        )
        named = [
            (command, option)
            for command, rest in re.findall(r"detlite ([\w-]+)([^`]*)", text)
            if command in COMMANDS
            for option in OPTION.findall(rest)
        ]
        for option in {*OPTION.findall(text)} - OF_OTHERS - {"--help"}:
            commands = [command for command, one in named if one == option] or shown_by
            # An alternative follows, which every command has.
            if re.search(rf"{option}(=\w+)?, or .*[A-Z]+\.[A-Z]", text):
                continue
            if missing := [name for name in commands if option not in options[name]]:
                wrong.append((module, option, missing))
    assert not wrong


def test_commands_take_the_keys_that_messages_name(parsers):
    for name, parser in parsers.items():
        dests = {action.dest for action in parser._actions}
        assert ("overrides" in dests) == (name not in ("compare", "doctor")), name
