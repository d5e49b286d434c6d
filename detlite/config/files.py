"""Read YAML files with their `_BASE_` files, and expand variables in paths."""

import itertools
import os
import re
from pathlib import Path
from typing import Any

import yaml

from detlite.errors import ConfigError
from detlite.files.reading import read_file

_MAX_BYTES = 1 << 24
_MAX_VALUES, _MAX_DEPTH = 100_000, 100
_SCALAR, _MAX_SCALAR = 100, 10_000  # characters that count as one value; of one value
_MAX_NUMBER = 100  # characters
_MAX_FILES = 100  # that a config is made of

# A wheel has its configs in the package, a clone next to it.
_PACKAGE = Path(__file__).parents[1]
CONFIGS = next((f for f in (_PACKAGE / "configs", _PACKAGE.parent / "configs") if f.is_dir()), None)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Refuses long numbers: one in base 60, such as 1:59:59:..., takes hours."""

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        if node.tag.endswith((":int", ":float")) and len(node.value) > _MAX_NUMBER:
            raise ValueError(f"a number has {len(node.value)} characters")
        return super().construct_scalar(node)


def find_config(name: str | Path, folder: Path = Path()) -> Path:
    """Return a config file: a path relative to a folder, or the name of one of detlite's."""
    path = folder / name
    if CONFIGS and not path.exists() and (CONFIGS / name).is_file():
        return CONFIGS / name
    return path


def read_chain(
    path: Path, children: tuple[Path, ...] = (), files: list[Path] | None = None
) -> list[tuple[Path, dict[str, Any]]]:
    """Read a YAML file and its bases as (file, content without `_BASE_`), in override order.

    `children` are the files whose `_BASE_` led here, the nearest first, and `files` are all files
    that were read so far.

    Raises:
        ConfigError: a file cannot be read, is not a mapping or repeats a key, or `_BASE_` is
            circular or leads to more than 100 files.
    """
    origin = f"{children[0]}: its _BASE_ " if children else ""
    files = [] if files is None else files
    files.append(path)
    if len(files) > _MAX_FILES:  # files that name a _BASE_ twice lead to 2 ** depth files
        raise ConfigError(f"{files[0]}: is made of more than {_MAX_FILES} files by their _BASE_")
    if path.suffix == ".py":
        raise ConfigError(
            f"{path}: is Python, like mmdetection's configs. detlite reads YAML: start from a file "
            "in configs/ or run `detlite init`"
        )
    try:
        if path.resolve() in [child.resolve() for child in children]:
            raise ConfigError(f"{origin}{path}: is its own _BASE_, directly or through other files")
        content = parse_yaml(read_file(path, _MAX_BYTES).decode(), path)
    except OSError as error:
        places = f" in {path.parent.absolute()} or detlite's own configs"
        place = places if isinstance(error, FileNotFoundError) else ""
        raise ConfigError(f"{origin}{path}: cannot be read ({error.strerror}){place}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not YAML: {error}. Save it as UTF-8") from error
    except ConfigError:
        raise
    except (RuntimeError, ValueError) as error:  # a circular link, or a null character
        raise ConfigError(f"{origin}{path}: cannot be read ({error})") from error
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: contains {type(content).__name__} instead of keys and values")
    bases = content.pop("_BASE_", [])
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise ConfigError(f"{path}: _BASE_ must be a path or a list of paths, not {bases!r}")
    chains = [
        read_chain(find_config(base, path.parent), (path, *children), files) for base in bases
    ]
    return [*itertools.chain(*chains), (path, content)]


def parse_yaml(text: str, source: Path) -> Any:
    """Parse the YAML text of a file.

    Raises:
        ConfigError: the text is not YAML, repeats a key, is nested too deeply, has a value of more
            than 10,000 characters, or more than 100,000 values, counted where aliases refer to
            them.
    """
    try:
        _check_size(text, source)
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _merge_sections(node, source)
        return loader.construct_document(node)
    except ConfigError:
        raise
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError) as error:
        # PyYAML raises the others for example for month 13 and for `!!bool maybe`.
        # PyYAML's messages have several lines.
        raise ConfigError(f"{source}: is not YAML: {' '.join(str(error).split())}") from error


def _check_size(text: str, source: Path) -> None:
    """Refuse too many or too deeply nested values, before they take memory and time."""
    count = 0
    sizes: dict[str | None, int] = {}  # the number of values by anchor
    parents: list[tuple[str | None, int]] = []  # anchor and count of the open sections
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, start = parents.pop()
            sizes[anchor] = count - start
        elif isinstance(event, yaml.AliasEvent):
            is_recursive = event.anchor in [anchor for anchor, _ in parents]
            count += _MAX_VALUES if is_recursive else sizes.get(event.anchor, 0)
        elif isinstance(event, yaml.CollectionStartEvent):
            parents.append((event.anchor, count))
            count += 1
        elif isinstance(event, yaml.ScalarEvent):
            if (characters := len(event.value)) > _MAX_SCALAR:
                raise ConfigError(
                    f"{source}: a value has {characters} characters, more than {_MAX_SCALAR}"
                )
            sizes[event.anchor] = 1 + characters // _SCALAR
            count += sizes[event.anchor]
        if len(parents) > _MAX_DEPTH:
            raise ConfigError(f"{source}: is nested too deeply, more than {_MAX_DEPTH} levels")
        if count > _MAX_VALUES:
            raise ConfigError(f"{source}: has more than {_MAX_VALUES} values, or a recursive alias")


def _merge_sections(node: yaml.Node, path: Path, prefix: str = "") -> None:
    """Merge sections that appear twice, as in some files of maskrcnn-benchmark.

    PyYAML would silently drop the first of two equal keys.

    Raises:
        ConfigError: a key other than a section appears twice.
    """
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            _merge_sections(item, path, f"{prefix.removesuffix('.')}[{number}].")
    if not isinstance(node, yaml.MappingNode):
        return
    merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            line = key.start_mark.line + 1
            raise ConfigError(f"{path}: the key in line {line} is a list or a section, not a text")
        first_key, first = merged.setdefault(str(key.value), (key, value))
        if first is value:
            continue
        if not (isinstance(first, yaml.MappingNode) and isinstance(value, yaml.MappingNode)):
            raise ConfigError(
                f"{path}: {prefix}{key.value} appears twice, in lines "
                f"{first_key.start_mark.line + 1} and {key.start_mark.line + 1}. Remove one of them"
            )
        # A new node, because other places may share the first one as an anchor.
        section = yaml.MappingNode(first.tag, first.value + value.value, first.start_mark)
        merged[str(key.value)] = (first_key, section)
    node.value = list(merged.values())
    for name, (_, value) in merged.items():
        _merge_sections(value, path, f"{prefix}{name}.")


def recognize(content: dict[str, Any]) -> str:
    """Return which other program's file has these keys and what to do, or ""."""
    model = content.get("MODEL")
    model_keys = model.keys() if isinstance(model, dict) else set()
    detectron2 = {"WEIGHTS", "ANCHOR_GENERATOR", "PROPOSAL_GENERATOR"}
    if content.keys() >= {"images", "annotations"}:
        advice = "an annotation file: `detlite init --data FILE` writes a config for it"
    elif "names" in content and content.keys() & {"nc", "train", "val"}:
        advice = "YOLO's data.yaml: `detlite init --data FOLDER` writes a config for it"
    elif "VERSION" in content or detectron2 & model_keys:
        advice = "a config of detectron2: see docs/migrating.md"
    elif {"epochs", "imgsz"} & content.keys():
        advice = "a settings file of ultralytics: `detlite init --data FOLDER` writes a config"
    else:
        return ""
    return f". This is {advice}"


def expand_path(text: str) -> Path:
    """Expand `~` and variables in a path, see `expand_variables`. Raises ConfigError."""
    text = expand_variables(text)
    try:
        if "\0" in text:
            raise ValueError("a path cannot have a null character")
        return Path(text).expanduser()
    except (RuntimeError, ValueError) as error:  # an unknown user
        raise ConfigError(f"{text!r}: {error}") from error


def expand_variables(text: str) -> str:
    """Expand `$NAME` and `${NAME:-default}` in a path or URL, like a shell.

    Raises:
        ConfigError: a variable is not set and has no default.
    """

    def value(match: re.Match[str]) -> str:
        name = match["name"] or match["plain"]
        # As in a shell, `:-` also replaces an empty variable.
        result = os.environ.get(name) or match["default"]
        if result is None:
            raise ConfigError(f"the path {text!r} needs the environment variable {name}")
        return result

    return re.sub(r"\$\{(?P<name>\w+)(:-(?P<default>[^}]*))?\}|\$(?P<plain>\w+)", value, text)
