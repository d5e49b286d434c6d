"""Load a config from YAML files and overrides, check it and freeze it."""

import ast
import contextlib
import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from detlite.errors import ConfigError

from .extensions import import_extensions
from .files import find_config, parse_yaml, read_chain, recognize
from .maskrcnn_benchmark import RESTATING, translate
from .removed import KEYS as REMOVED
from .removed import NO_EFFECT, is_ignored
from .schema import KEYS, Key
from .schema.rules import check_rules

_BY_NAME = {key.name: key for key in KEYS}
_OWN_KEYS = ". Declare keys of your own in a file of IMPORTS, see docs/extending.md"
_SIMILAR, _MAX_UNKNOWN = 0.85, 100
# Exactly one of them is set. Setting one unsets the others if an earlier source set them.
_ALTERNATIVES = ("SOLVER.MAX_ITER", "SOLVER.MAX_EPOCHS", "SOLVER.MAX_MINUTES")


# Keys and values: {"SEED": 1}, or alternating as in a command, ["SEED", 1].
Overrides = Mapping[str, Any] | Sequence[Any]


def as_list(overrides: Overrides) -> list[Any]:
    """Convert overrides to alternating keys and values. ConfigError if a key has no value."""
    if isinstance(overrides, Mapping):
        return [item for pair in overrides.items() for item in pair]
    if isinstance(overrides, str):
        raise ConfigError(f"overrides is {overrides!r}: pass a dict of keys and values")
    if len(overrides) % 2:
        raise ConfigError(f"overrides are pairs KEY VALUE: {overrides[-1]!r} has no value")
    return list(overrides)


def changed(cfg: CfgNode, values: Mapping[str, Any]) -> CfgNode:
    """Return a frozen copy of a config with other values of some keys, which are not checked."""
    cfg = cfg.clone()
    cfg.defrost()
    for name, value in values.items():
        _set(cfg, name, value)
    cfg.freeze()
    return cfg


def default_config() -> CfgNode:
    """Return the defaults of the schema as a mutable yacs node."""
    cfg = CfgNode()
    for key in KEYS:
        _set(cfg, key.name, key.default)
    return cfg


def load_config(
    path: str | Path | None = None,
    overrides: Overrides = (),
    complete: Callable[[CfgNode], None] | None = None,
) -> CfgNode:
    """Load a config file, apply overrides, check everything, and return the frozen config.

    Args:
        path: a YAML file, or the name of one of detlite's configs, such as
            coco/mask_rcnn_R_50_FPN_1x.yaml. The files of its `_BASE_` (paths relative to it) are
            read first. None for the defaults.
        overrides: keys and values, `{"SOLVER.BASE_LR": 0.01}`; strings are parsed.
        complete: called with the mutable config before it is frozen, to set further keys.

    Raises:
        ConfigError: a file cannot be read, a key is unknown, or a value is invalid or contradicts
            another one.
    """
    return _resolve([] if path is None else read_chain(find_config(path)), overrides, complete)


def config_from(
    content: dict[str, Any], source: Path, overrides: Overrides = (), base: str | None = None
) -> CfgNode:
    """Load a config that is not a file, such as the one in a checkpoint.

    Settings of the training that were removed from detlite are ignored in `content`.

    Args:
        content: the keys and values, without `_BASE_`.
        source: the file that contains it, for error messages.
        overrides: see `load_config`, also for errors.
        base: the `_BASE_`: a file, or the name of one of detlite's configs.
    """
    chain = read_chain(find_config(base)) if base else []
    return _resolve([*chain, (source, content)], overrides, stored=source)


def _resolve(
    chain: list[tuple[Path, dict[str, Any]]],
    overrides: Overrides,
    complete: Callable[[CfgNode], None] | None = None,
    stored: Path | None = None,
) -> CfgNode:
    """Combine files and overrides to a config.

    `stored` is the source in `chain` that describes trained weights, see `is_ignored`.
    """
    opts = as_list(overrides)
    pairs = [(str(name), value) for name, value in zip(opts[::2], opts[1::2], strict=True)]
    own, imports = _import_all(chain, pairs)
    keys = _BY_NAME | own
    sources = [(str(file), flatten(content, known=keys)) for file, content in chain]
    sources.append(("overrides", pairs))
    _check_names(keys, sources, {str(file): recognize(content) for file, content in chain})
    cfg = default_config()
    for key in own.values():
        _set(cfg, key.name, key.default)
    keys_set: set[str] = set()
    restating: dict[str, tuple[Key, Any]] = {}
    for source, rows in sources:
        # A key overrides the keys of earlier sources that only restate it.
        names = {name for name, _ in rows}
        restating = {n: pair for n, pair in restating.items() if pair[0].origin not in names}
        if any(name in _ALTERNATIVES and value is not None for name, value in rows):
            for name in _ALTERNATIVES:
                _set(cfg, name, None)
        for name, value in rows:
            if name not in own and is_ignored(name, value, source, stored=source == str(stored)):
                continue
            if name in keys:
                _set(cfg, name, _checked(keys[name], value, source))
                keys_set.add(name)
            else:
                restating[name] = RESTATING[name], _checked(RESTATING[name], value, source)
        lengths = {name: cfg.SOLVER[name.removeprefix("SOLVER.")] for name in _ALTERNATIVES}
        stated = [f"{name} {value}" for name, value in lengths.items() if value is not None]
        if len(stated) != 1:
            raise ConfigError(
                f"{source}: set exactly one of {', '.join(_ALTERNATIVES)} as the length of the "
                f"run; set is {' and '.join(stated) or 'none'}"
            )
    cfg.IMPORTS = imports
    if restating:
        translate(cfg, {name: value for name, (_, value) in restating.items()}, keys_set)
    check_rules(cfg)
    if complete:
        complete(cfg)
    cfg.freeze()
    return cfg


def _import_all(
    chain: list[tuple[Path, dict[str, Any]]], overrides: list[tuple[str, Any]]
) -> tuple[dict[str, Key], tuple[str, ...]]:
    """Import the extensions of all files and overrides, see `import_extensions`."""
    key = _BY_NAME["IMPORTS"]
    values = [(file, content[key.name]) for file, content in chain if key.name in content]
    values += [(Path("overrides"), value) for name, value in overrides if name == key.name]
    return import_extensions(
        [(name, file.parent) for file, value in values for name in _checked(key, value, str(file))]
    )


def keys_of(cfg: CfgNode) -> dict[str, Key]:
    """Return all keys of a loaded config by name, also those that its extensions declare."""
    return _BY_NAME | import_extensions([(name, Path()) for name in cfg.IMPORTS])[0]


def flatten(
    node: dict[str, Any], prefix: str = "", known: Mapping[str, Key] = _BY_NAME
) -> list[tuple[str, Any]]:
    """Return the names and values of all keys in nested sections; `known` keys are no sections."""
    rows = []
    for part, value in node.items():
        name = f"{prefix}{part}"
        if isinstance(value, dict) and name not in known:
            rows += flatten(value, name + ".", known)
        else:
            rows.append((name, value))
    return rows


def _check_names(
    keys: Mapping[str, Key],
    sources: Sequence[tuple[str, list[tuple[str, Any]]]],
    hints: Mapping[str, str],
) -> None:
    """Raise a ConfigError that lists the unknown keys of a source.

    `hints` say which other program wrote a file, see `recognize`.
    """
    known = {*keys, *RESTATING, *REMOVED, *NO_EFFECT}
    for source, rows in sources:
        names = [n for n, _ in rows if n not in known]
        if names:
            listed = ", ".join(_describe_unknown(name, keys) for name in names[:_MAX_UNKNOWN])
            more = len(names) - _MAX_UNKNOWN
            raise ConfigError(
                f"{source}: unknown config key{'s' if names[1:] else ''} {listed}"
                f"{f' and {more} more' if more > 0 else ''}{hints.get(source) or _OWN_KEYS}"
            )


def _describe_unknown(name: str, keys: Mapping[str, Key]) -> str:
    """Return an unknown name with the most similar key, if any is really similar."""
    # YAML allows line breaks and other control characters in keys.
    text = name if name.isprintable() else repr(name)
    if inside := next((known for known in keys if known.startswith(name + ".")), None):
        return f"{text} (a section with keys such as {inside})"
    section, _, leaf = name.upper().rpartition(".")
    for known in difflib.get_close_matches(name.upper(), keys, n=5, cutoff=_SIMILAR):
        known_section, _, known_leaf = known.rpartition(".")
        pairs = (section, known_section), (leaf, known_leaf)
        if all(difflib.SequenceMatcher(None, *pair).ratio() >= _SIMILAR for pair in pairs):
            return f"{text} (did you mean {known}?)"
    other = [known for known in keys if not section and known.endswith("." + leaf)]
    return f"{text} (did you mean {other[0]}?)" if len(other) == 1 else text


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
    """Parse strings, and convert int to float, lists to tuples, and single values to sequences.

    Paths in overrides of Python code become strings.
    """
    value = str(value) if isinstance(value, Path) else value
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


def _as_tuples(values: Sequence[Any]) -> tuple[Any, ...]:
    """Convert lists to tuples at every depth: YAML has only lists, and [1] != (1,)."""
    return tuple(
        _as_tuples(v) if isinstance(v, (tuple, list)) else str(v) if isinstance(v, Path) else v
        for v in values
    )


def _set(cfg: CfgNode, name: str, value: Any) -> None:
    *parents, leaf = name.split(".")
    for parent in parents:
        cfg = cfg.setdefault(parent, CfgNode())
    cfg[leaf] = value
