"""YAML files and the files that they inherit from by `_BASE_`, and paths with variables."""

from __future__ import annotations

import itertools
import math
import os
import re
from pathlib import Path
from typing import Any

import yaml

from .errors import ConfigError

_MOST_VALUES = 100_000

# Configs of a wheel lie in the package, those of a clone beside it.
_PACKAGE = Path(__file__).parents[1]
CONFIGS = next((f for f in (_PACKAGE / "configs", _PACKAGE.parent / "configs") if f.is_dir()), None)


def find_config(name: str | Path, folder: Path = Path()) -> Path:
    """A config file: the path, relative to a folder, or else detlite's own of that name."""
    path = folder / name
    if CONFIGS and not path.exists() and (CONFIGS / name).is_file():
        return CONFIGS / name
    return path


def read_chain(path: Path, children: tuple[Path, ...] = ()) -> list[tuple[Path, dict[str, Any]]]:
    """A YAML file and its bases as (file, content without `_BASE_`), each before its heirs.

    Of several bases the later ones go over the earlier ones.

    Args:
        path: the file.
        children: the files that led to it by `_BASE_`, the last one first.

    Raises:
        ConfigError: a file that cannot be read, is no mapping, gives a key twice, or a `_BASE_`
            that leads in a circle.
    """
    asked = f"{children[0]}: its _BASE_ " if children else ""
    if path.resolve() in [child.resolve() for child in children]:
        raise ConfigError(f"{asked}{path}: _BASE_ leads back to the file itself")
    if path.suffix == ".py":
        raise ConfigError(
            f"{path}: is Python, such as mmdetection's configs; detlite's are YAML: start from "
            "one of configs/, or by `detlite init`"
        )
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"), path)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{asked}{path}: cannot be read ({error.strerror}); looked for in "
            f"{path.parent.absolute()} and among detlite's own configs"
        ) from error
    except OSError as error:
        raise ConfigError(f"{asked}{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not YAML: {error}; save it in UTF-8") from error
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: holds {type(content).__name__}, not keys and values")
    bases = content.pop("_BASE_", [])
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise ConfigError(
            f"{path}: _BASE_ is the path of a file, or a list of paths, not {bases!r}"
        )
    chains = [read_chain(find_config(base, path.parent), (path, *children)) for base in bases]
    return [*itertools.chain(*chains), (path, content)]


def parse_yaml(text: str, source: Path) -> Any:
    """What a YAML text of `source` holds.

    Raises:
        ConfigError: it is not YAML, gives a value twice, is nested too deep, or has aliases that
            refer to themselves or expand to more than 100 000 values.
    """
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _expanded_size(node, {}) > _MOST_VALUES:
            raise ConfigError(
                f"{source}: its aliases expand to more than {_MOST_VALUES} values, or without end"
            )
        _join_sections(node, source)
        return loader.construct_document(node)
    except ConfigError:
        raise
    except (yaml.YAMLError, ValueError) as error:  # ValueError: such as a month of 13
        # PyYAML's own messages have several lines.
        raise ConfigError(f"{source}: is not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ConfigError(f"{source}: is nested too deep") from error


def _expanded_size(node: yaml.Node, known: dict[yaml.Node, float]) -> float:
    """How many values a node has, those that aliases repeat counted each time."""
    if node not in known:
        known[node] = math.inf  # while it is counted: what meets it again never ends
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in parts for part in pair]
        known[node] = 1 + sum(_expanded_size(part, known) for part in parts)
    return known[node]


def _join_sections(node: yaml.Node, path: Path, prefix: str = "") -> None:
    """Joins sections that are given in parts, as in some files of maskrcnn-benchmark.

    YAML's own reader keeps the last of two keys and silently drops the first.

    Raises:
        ConfigError: a value that is given twice.
    """
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            _join_sections(item, path, f"{prefix.removesuffix('.')}[{number}].")
    if not isinstance(node, yaml.MappingNode):
        return
    found: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    for key, value in node.value:
        name = str(key.value)
        if name not in found:
            found[name] = (key, value)
            continue
        first_key, first = found[name]
        if not (isinstance(first, yaml.MappingNode) and isinstance(value, yaml.MappingNode)):
            raise ConfigError(
                f"{path}: {prefix}{name} is given twice, in line {first_key.start_mark.line + 1} "
                f"and in line {key.start_mark.line + 1}: remove one of the two"
            )
        # A new node: the first may be an anchor that other places share.
        joined = yaml.MappingNode(first.tag, first.value + value.value, first.start_mark)
        found[name] = (first_key, joined)
    node.value = list(found.values())
    for name, (_, value) in found.items():
        _join_sections(value, path, f"{prefix}{name}.")


def expand_path(text: str) -> Path:
    """Expands `~` in a path, and what `expand_variables` does. Raises as that."""
    return Path(expand_variables(text)).expanduser()


def expand_variables(text: str) -> str:
    """Expands `$NAME` and `${NAME:-default}`, as a shell does, in a path or a URL.

    Raises:
        ConfigError: a variable that is not set and has no default.
    """

    def value(match: re.Match[str]) -> str:
        name, default = match["name"] or match["plain"], match["default"]
        # As in a shell, `:-` also stands in for a variable that is set but empty.
        found = os.environ.get(name) or default
        if found is None:
            raise ConfigError(f"the path {text!r} needs the environment variable {name}")
        return found

    pattern = r"\$\{(?P<name>\w+)(:-(?P<default>[^}]*))?\}|\$(?P<plain>\w+)"
    return re.sub(pattern, value, text)
