"""From a YAML file and command-line overrides to a checked, frozen config."""

from __future__ import annotations

import ast
import contextlib
import difflib
import importlib
import importlib.util
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from .errors import ConfigError
from .files import expand_path, find_config, read_chain
from .foreign import whose_keys
from .maskrcnn_benchmark import NO_EFFECT, RESTATING, translate
from .schema import KEYS, Key

logger = logging.getLogger(__name__)

_BY_NAME = {key.name: key for key in KEYS}
# Exactly one is set: what states one of them unsets the others, where these were stated before.
_ALTERNATIVES = ("SOLVER.MAX_ITER", "SOLVER.MAX_EPOCHS", "SOLVER.MAX_MINUTES")


def default_config() -> CfgNode:
    """The schema's defaults as a mutable yacs node."""
    cfg = CfgNode()
    for key in KEYS:
        _set(cfg, key.name, key.default)
    return cfg


def load_config(path: str | Path | None = None, opts: Sequence[Any] = ()) -> CfgNode:
    """Reads a config file, applies overrides, checks everything.

    Args:
        path: YAML file, or the name of one of detlite's own, such as
            coco/mask_rcnn_R_50_FPN_1x.yaml; its `_BASE_` (one or more paths relative to it) is
            read first. None: defaults.
        opts: alternating keys and values, `["SOLVER.BASE_LR", 0.01]`; strings are parsed.

    Returns:
        A frozen config.

    Raises:
        ConfigError: a file that cannot be read, an unknown key, a value of the wrong type or
            range, or one that contradicts another.
    """
    if path is None:
        return _resolve([], opts, Path())
    path = find_config(path)
    return _resolve(read_chain(path), opts, path.parent)


def config_from(
    content: dict[str, Any], source: Path, opts: Sequence[Any] = (), base: str | None = None
) -> CfgNode:
    """`load_config` of a config that is not in a file of its own, such as a checkpoint's.

    Args:
        content: what the YAML file would hold, without `_BASE_`.
        source: what holds it, for messages.
        opts: overrides as for `load_config`.
        base: its `_BASE_`: a file, or the name of one of detlite's own.

    Raises:
        ConfigError: see `load_config`.
    """
    chain = read_chain(find_config(base)) if base else []
    return _resolve([*chain, (source, content)], opts, Path())


def _resolve(
    chain: list[tuple[Path, dict[str, Any]]], opts: Sequence[Any], folder: Path
) -> CfgNode:
    """The config of files and overrides; IMPORTS are relative to `folder`."""
    if len(opts) % 2:
        raise ConfigError(f"overrides come in pairs KEY VALUE; {opts[-1]!r} stands alone")
    cfg = default_config()
    given: set[str] = set()
    restating: dict[str, Any] = {}
    sources = [(str(file), flatten(content)) for file, content in chain]
    whose = {str(file): whose_keys(content) for file, content in chain}
    overrides = [(str(name), value) for name, value in zip(opts[::2], opts[1::2], strict=True)]
    for source, rows in (*sources, ("overrides", overrides)):
        # What this source states goes before what earlier ones restate of it.
        stated = {name for name, _ in rows}
        restating = {n: v for n, v in restating.items() if RESTATING[n].origin not in stated}
        if any(name in _ALTERNATIVES and value is not None for name, value in rows):
            _unset_alternatives(cfg)
        for name, value in rows:
            if name in NO_EFFECT:
                logger.info("%s: %s has no effect here: %s", source, name, NO_EFFECT[name])
            elif name in RESTATING:
                restating[name] = _checked(RESTATING[name], value, source)
            elif name in _BY_NAME:
                key = _BY_NAME[name]
                left_out = value is None and key.optional_type
                _set(cfg, name, None if left_out else _checked(key, value, source))
                given.add(name)
            else:
                raise ConfigError(f"{source}: {_why_unknown(name)}{whose.get(source, '')}")
        _check_alternatives(cfg, source)
    translate(cfg, restating, given)
    _import_extensions(cfg.IMPORTS, folder)
    cfg.freeze()
    return cfg


def _unset_alternatives(cfg: CfgNode) -> None:
    for name in _ALTERNATIVES:
        _set(cfg, name, None)


def _check_alternatives(cfg: CfgNode, source: str) -> None:
    values = {name: cfg.SOLVER[name.split(".")[1]] for name in _ALTERNATIVES}
    found = {name: value for name, value in values.items() if value is not None}
    if len(found) != 1:
        listed = " and ".join(f"{name} {value}" for name, value in found.items()) or "none"
        raise ConfigError(
            f"{source}: the length of a run is one of {', '.join(_ALTERNATIVES)}, and here it is "
            f"{listed}: set one of them and leave out the others"
        )


def flatten(node: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """The names and values of all keys in nested sections."""
    rows = []
    for part, value in node.items():
        name = f"{prefix}{part}"
        if isinstance(value, dict) and name not in _BY_NAME:
            if not value:
                continue
            rows += flatten(value, name + ".")
        else:
            rows.append((name, value))
    return rows


def _checked(key: Key, value: Any, source: str) -> Any:
    """The value in the key's type, if the key may have it."""
    value = _coerce(key, value, source)
    wanted = key.check(value) if key.check else None
    if wanted:
        raise ConfigError(f"{source}: {key.name} is {value!r}, but must be {wanted} ({key.doc})")
    return value


def _why_unknown(name: str) -> str:
    # A whole section given a plain value is a known name as well.
    inside = [known for known in _BY_NAME if known.startswith(name + ".")]
    if inside:
        return f"{name} is a section with keys such as {inside[0]}, not a key"
    close = difflib.get_close_matches(name.upper(), _BY_NAME, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]}?" if close else ""
    # YAML takes line ends and the like in a key.
    return f"unknown config key {name if name.isprintable() else repr(name)}{hint}"


def _coerce(key: Key, value: Any, source: str) -> Any:
    """The value in the type of the key's default: literals parsed, int to float, list to tuple."""
    wanted = key.optional_type or type(key.default)
    given = value
    if isinstance(value, str) and wanted is not str:
        # What is no literal stays a string and fails below, unless a boolean in YAML's spelling.
        # MemoryError, RecursionError: nested too deep.
        with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            value = ast.literal_eval(value)
        if isinstance(value, str) and wanted is bool and value.lower() in ("true", "false"):
            value = value.lower() == "true"
    if wanted is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            return float(value)
    if wanted in (tuple, list):
        if isinstance(value, (tuple, list)):
            return _as_tuples(value) if wanted is tuple else list(value)
        # One number or name where a sequence is meant, as in MIN_SIZE_TRAIN: 800.
        if isinstance(value, (int, float, str)) and not isinstance(value, bool) and value != "":
            return wanted([value])
    if type(value) is not wanted:
        raise ConfigError(
            f"{source}: {key.name} is {given!r} ({type(given).__name__}), but must be "
            f"{wanted.__name__} ({key.doc})"
        )
    return value


def _as_tuples(values: Sequence[Any]) -> tuple[Any, ...]:
    """Lists as tuples at every depth: YAML has lists only, and the two never compare equal."""
    return tuple(_as_tuples(v) if isinstance(v, (tuple, list)) else v for v in values)


def _set(cfg: CfgNode, name: str, value: Any) -> None:
    *parents, leaf = name.split(".")
    for parent in parents:
        cfg = cfg.setdefault(parent, CfgNode())
    cfg[leaf] = value


def _import_extensions(names: Sequence[str], folder: Path) -> None:
    """Imports the user's own files, whose decorators register parts; a file only once."""
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
            # Known before it runs, as for any import: a dataclass in it looks its module up.
            sys.modules[module_name] = module
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[module_name]
                raise
        except (ImportError, OSError) as error:
            raise ConfigError(f"IMPORTS: {name!r} cannot be imported: {error}") from error
