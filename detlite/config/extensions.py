"""Extensions: the user's modules and files in IMPORTS, and config keys that they declare."""

import ast
import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from detlite.errors import ConfigError
from detlite.files.atomic_write import atomic_open
from detlite.registry import EXTENSION_MODULE

from .files import expand_path
from .key import Key
from .schema import KEYS

COPIES = "extensions"  # folder of the copies in the folder of a run
_TYPES = (bool, int, float, str, tuple, list)
# The declared keys by the module of the file; "": by other modules, for all configs.
_DECLARED: dict[str, dict[str, Key]] = {}
_newest: dict[str, str] = {}  # the module that was loaded last from a file of each name


def declare_keys(section: str, keys: Mapping[Key, str]) -> None:
    """Declare config keys of your own, usually in a file of IMPORTS.

    They are in all configs that list the file in IMPORTS. Keys of modules that are imported in
    another way are in all configs of the process.

        KEYS = {Key("RADIUS", 1.5, positive): "radius of positive locations, in strides"}
        declare_keys("MODEL.FCOS", KEYS)

    Args:
        section: the section of the keys, a new one or one of detlite's.
        keys: keys, whose defaults determine their types, and their descriptions.

    Raises:
        ConfigError: a declaration is invalid or contradicts another key.
    """
    module = sys._getframe(1).f_globals.get("__name__", "")  # the caller's
    own = _DECLARED.setdefault(module if module.startswith(EXTENSION_MODULE) else "", {})
    for key, doc in keys.items():
        name = f"{section}.{key.name}".removeprefix(".")
        own[name] = replace(key, name=name, doc=doc)
        if problem := _problem(own[name], [known.name for known in KEYS]):
            del own[name]
            raise ConfigError(f"cannot declare the config key {name}: {problem}")


def _problem(key: Key, known: Sequence[str]) -> str:
    """Return why a key cannot be declared, or ""."""
    key_type = key.optional_type or type(key.default)
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*(\.[A-Z][A-Z0-9_]*)*", key.name):
        return "write names in capitals"
    if any(f"{key.name}.".startswith(f"{other}.") for other in known):
        return "detlite has this key"
    if any(other.startswith(f"{key.name}.") for other in known):
        return "detlite has a section of this name"
    if key_type not in _TYPES:
        types = ", ".join(known_type.__name__ for known_type in _TYPES)
        return f"its type is {key_type.__name__}, but must be one of {types}"
    if not key.doc:
        return "describe it in a sentence"
    if key.default is not None and key.check and (expected := key.check(key.default)):
        return f"its default is {key.default!r}, but must be {expected}"
    return ""


def import_extensions(names: Sequence[tuple[str, Path]]) -> tuple[dict[str, Key], tuple[str, ...]]:
    """Import modules and files, which register components and declare keys.

    Args:
        names: module names, and paths that end in .py, each with the folder to which it is
            relative. A file can import files before it by their names.

    Returns:
        The declared keys by name, and the value of IMPORTS that finds the files from any folder.

    Raises:
        ConfigError: a module cannot be imported, a file imports another one that is not before it,
            two files have the same name, or both declare the same key.
    """
    imports: dict[str, str] = {}  # the values of IMPORTS by module
    files: dict[str, str] = {}  # the modules by file name
    own: dict[str, str] = {}  # the files by declared key
    for name, folder in names:
        try:
            if not name.endswith(".py"):
                importlib.import_module(name)
                imports[name] = name
                continue
            file = (folder / expand_path(name)).absolute()
            module = _import_file(file, files)
        except (ImportError, OSError) as error:
            raise ConfigError(f"IMPORTS: cannot import {name!r}: {error}") from error
        known = files.setdefault(file.name, module)
        if known != module:
            raise ConfigError(
                f"IMPORTS: {imports[known]} and {file} have the same name: rename one, because the "
                "folder of a run contains copies of both"
            )
        imports.setdefault(module, str(file))
        for key in _DECLARED.get(module, {}):
            if own.setdefault(key, module) != module:
                raise ConfigError(
                    f"IMPORTS: {imports[own[key]]} and {file} declare the same config key {key}"
                )
    modules = ["", *imports]
    keys = {name: key for module in modules for name, key in _DECLARED.get(module, {}).items()}
    return keys, tuple(imports.values())


def copy_extensions(imports: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Copy the files in the value `imports` of IMPORTS to a run's folder, so that it can be moved.

    Returns:
        The value of IMPORTS that names the copies, relative to the folder.
    """
    copied = []
    for name in imports:
        if name.endswith(".py"):
            content, copy = Path(name).read_bytes(), folder / COPIES / Path(name).name
            copy.parent.mkdir(exist_ok=True)
            if not copy.is_file() or copy.read_bytes() != content:
                with atomic_open(copy, "wb") as file:
                    file.write(content)
            name = f"{COPIES}/{copy.name}"
        copied.append(name)
    return tuple(copied)


def _import_file(file: Path, earlier: Mapping[str, str]) -> str:
    """Import a file unless it is loaded already, and return the name of its module.

    The name contains a digest of the content and of the `earlier` files that it imports, which are
    modules by file name. Copies of a file, such as the one in the folder of a run, are therefore
    the same module, and a changed file is loaded again.
    """
    content = file.read_bytes()
    imported = _imported_names(content, file)
    needed = {part: earlier[f"{part}.py"] for part in imported if f"{part}.py" in earlier}
    for part in imported:
        if (
            part not in needed
            and part not in sys.modules
            and (file.parent / f"{part}.py").is_file()
        ):
            raise ImportError(
                f"it imports {part}.py next to it: list {part}.py before it in IMPORTS, so that "
                "the folder of a run contains copies of both"
            )
    digest = hashlib.sha256(content + "".join(needed.values()).encode()).hexdigest()[:16]
    name = f"{EXTENSION_MODULE}{file.name}@{digest}"
    if name in sys.modules and _newest.get(file.name) == name:
        return name
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # Added before it runs, as for any import: dataclasses look up their module.
    sys.modules[name] = module
    _DECLARED.pop(name, None)
    aliases = {part: sys.modules[n] for part, n in needed.items() if part not in sys.modules}
    sys.modules.update(aliases)
    try:
        # Not by the loader: Python's stored bytecode may be of a file of the same second and size.
        exec(compile(content, file, "exec"), vars(module))
    except BaseException:
        del sys.modules[name]
        _DECLARED.pop(name, None)
        raise
    finally:
        for part in aliases:
            del sys.modules[part]
    _newest[file.name] = name
    return name


def _imported_names(content: bytes, file: Path) -> list[str]:
    """Return the names of the modules that a file imports."""
    nodes = list(ast.walk(ast.parse(content, file)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    return sorted(names)
