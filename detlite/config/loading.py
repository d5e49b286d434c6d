"""Load a config from YAML files and overrides, check it and freeze it."""

import ast
import contextlib
import difflib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from detlite.errors import ConfigError

from .files import expand_path, find_config, parse_yaml, read_chain, recognize
from .maskrcnn_benchmark import RESTATING, translate
from .removed import is_ignored
from .schema import KEYS, Key
from .schema.rules import check_rules

_BY_NAME = {key.name: key for key in KEYS}
# Exactly one of them is set. Setting one unsets the others if an earlier source set them.
_ALTERNATIVES = ("SOLVER.MAX_ITER", "SOLVER.MAX_EPOCHS", "SOLVER.MAX_MINUTES")


def default_config() -> CfgNode:
    """Return the defaults of the schema as a mutable yacs node."""
    cfg = CfgNode()
    for key in KEYS:
        _set(cfg, key.name, key.default)
    return cfg


def load_config(
    path: str | Path | None = None,
    opts: Sequence[Any] = (),
    complete: Callable[[CfgNode], None] | None = None,
) -> CfgNode:
    """Load a config file, apply overrides, check everything, and return the frozen config.

    Args:
        path: a YAML file, or the name of one of detlite's configs, such as
            coco/mask_rcnn_R_50_FPN_1x.yaml. The files of its `_BASE_` (paths relative to it) are
            read first. None for the defaults.
        opts: alternating keys and values, `["SOLVER.BASE_LR", 0.01]`; strings are parsed.
        complete: called with the mutable config before it is frozen, to set further keys.

    Raises:
        ConfigError: a file cannot be read, a key is unknown, or a value is invalid or contradicts
            another one.
    """
    if path is None:
        return _resolve([], opts, Path(), complete)
    path = find_config(path)
    return _resolve(read_chain(path), opts, path.parent, complete)


def config_from(
    content: dict[str, Any], source: Path, opts: Sequence[Any] = (), base: str | None = None
) -> CfgNode:
    """Load a config that is not a file, such as the one in a checkpoint.

    Settings of the training that were removed from detlite are ignored in `content`.

    Args:
        content: the keys and values, without `_BASE_`.
        source: the file that contains it, for error messages.
        opts: overrides, see `load_config`, also for errors.
        base: the `_BASE_`: a file, or the name of one of detlite's configs.
    """
    chain = read_chain(find_config(base)) if base else []
    return _resolve([*chain, (source, content)], opts, Path(), stored=source)


def _resolve(
    chain: list[tuple[Path, dict[str, Any]]],
    opts: Sequence[Any],
    folder: Path,
    complete: Callable[[CfgNode], None] | None = None,
    stored: Path | None = None,
) -> CfgNode:
    """Combine files and overrides to a config; IMPORTS are relative to `folder`.

    `stored` is the source in `chain` that describes trained weights, see `is_ignored`.
    """
    if len(opts) % 2:
        raise ConfigError(f"overrides are pairs KEY VALUE: {opts[-1]!r} has no value")
    cfg = default_config()
    keys_set: set[str] = set()
    restating: dict[str, tuple[Key, Any]] = {}
    overrides = [(str(name), value) for name, value in zip(opts[::2], opts[1::2], strict=True)]
    sources = [(str(file), flatten(content), recognize(content)) for file, content in chain]
    for source, rows, hint in (*sources, ("overrides", overrides, "")):
        # A key overrides the keys of earlier sources that only restate it.
        names = {name for name, _ in rows}
        restating = {n: pair for n, pair in restating.items() if pair[0].origin not in names}
        if any(name in _ALTERNATIVES and value is not None for name, value in rows):
            for name in _ALTERNATIVES:
                _set(cfg, name, None)
        for name, value in rows:
            if is_ignored(name, value, source, stored=source == str(stored)):
                continue
            if name in _BY_NAME:
                _set(cfg, name, _checked(_BY_NAME[name], value, source))
                keys_set.add(name)
            elif name in RESTATING:
                restating[name] = RESTATING[name], _checked(RESTATING[name], value, source)
            else:
                raise ConfigError(f"{source}: {_why_unknown(name)}{hint}")
        lengths = {name: cfg.SOLVER[name.removeprefix("SOLVER.")] for name in _ALTERNATIVES}
        stated = [f"{name} {value}" for name, value in lengths.items() if value is not None]
        if len(stated) != 1:
            raise ConfigError(
                f"{source}: set exactly one of {', '.join(_ALTERNATIVES)} as the length of the "
                f"run; set is {' and '.join(stated) or 'none'}"
            )
    if restating:
        translate(cfg, {name: value for name, (_, value) in restating.items()}, keys_set)
    check_rules(cfg)
    _import_extensions(cfg.IMPORTS, folder)
    if complete:
        complete(cfg)
    cfg.freeze()
    return cfg


def flatten(node: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return the names and values of all keys in nested sections."""
    rows = []
    for part, value in node.items():
        name = f"{prefix}{part}"
        if isinstance(value, dict) and name not in _BY_NAME:
            rows += flatten(value, name + ".")
        else:
            rows.append((name, value))
    return rows


def _checked(key: Key, value: Any, source: str) -> Any:
    """Convert a value to the type of its key and check it."""
    if value is None and key.optional_type and not key.origin:
        return None
    key_type = key.optional_type or type(key.default)
    converted = _convert(value, key_type)
    if type(converted) is not key_type:
        raise ConfigError(
            f"{source}: {key.name} is {value!r} ({type(value).__name__}), but must be "
            f"{key_type.__name__} ({key.doc})"
        )
    expected = key.check(converted) if key.check else None
    if expected:
        raise ConfigError(
            f"{source}: {key.name} is {converted!r}, but must be {expected} ({key.doc})"
        )
    return converted


def _convert(value: Any, key_type: type) -> Any:
    """Parse strings, and convert int to float, lists to tuples, and single values to sequences."""
    if isinstance(value, str) and key_type is not str:
        # MemoryError, RecursionError: nested too deeply.
        with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            value = ast.literal_eval(value)
        if isinstance(value, str) and key_type in (tuple, list) and value.startswith("["):
            with contextlib.suppress(ConfigError):  # [a, b=c], as in a YAML file
                value = parse_yaml(value, Path("overrides"))
        if key_type is bool and str(value).lower() in ("true", "false"):  # YAML's spelling
            return str(value).lower() == "true"
    if isinstance(value, (tuple, list)) and key_type in (tuple, list):
        return _as_tuples(value) if key_type is tuple else list(value)
    if not isinstance(value, (int, float, str)) or isinstance(value, bool):
        return value
    if key_type is str:
        return str(value)
    if key_type is float and isinstance(value, int):
        with contextlib.suppress(OverflowError):
            return float(value)
    if key_type in (tuple, list) and value != "":
        return key_type([value])
    return value


def _why_unknown(name: str) -> str:
    keys = [known for known in _BY_NAME if known.startswith(name + ".")]
    if keys:
        return f"{name} is a section with keys such as {keys[0]}, not a key"
    close = difflib.get_close_matches(name.upper(), _BY_NAME, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]}?" if close else ""
    # YAML allows line breaks and other control characters in keys.
    return f"unknown config key {name if name.isprintable() else repr(name)}{hint}"


def _as_tuples(values: Sequence[Any]) -> tuple[Any, ...]:
    """Convert lists to tuples at every depth: YAML has only lists, and [1] != (1,)."""
    return tuple(_as_tuples(v) if isinstance(v, (tuple, list)) else v for v in values)


def _set(cfg: CfgNode, name: str, value: Any) -> None:
    *parents, leaf = name.split(".")
    for parent in parents:
        cfg = cfg.setdefault(parent, CfgNode())
    cfg[leaf] = value


def _import_extensions(names: Sequence[str], folder: Path) -> None:
    """Import the user's modules and files, which register components; each file only once."""
    for name in names:
        try:
            if not name.endswith(".py"):
                importlib.import_module(name)
                continue
            file = expand_path(name)
            file = file if file.exists() else folder / file
            module_name = f"detlite_import_{file.resolve().as_posix()}"
            if module_name in sys.modules:
                continue
            spec = importlib.util.spec_from_file_location(module_name, file)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            # Added before it runs, as for any import: dataclasses look up their module.
            sys.modules[module_name] = module
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[module_name]
                raise
        except (ImportError, OSError) as error:
            raise ConfigError(f"IMPORTS: cannot import {name!r}: {error}") from error
