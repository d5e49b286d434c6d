"""The manifest of a run over many pictures: begun once, gone on with by the same command alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from filelock import FileLock

from detlite.config import ConfigError

from .result_files import Entry
from .work_shards import LOCK, MANIFEST, RESULTS, SHARDS, Run, remove_parts, write_json

SHARD_SIZE = 1000  # pictures, unless the command says otherwise
_SHARDS_A_PROCESS = 8  # at least, where there are several, so that they end together


def open_run(
    folder: Path,
    command: Mapping[str, object],
    pictures: Sequence[str],
    form: str,
    categories: Sequence[Entry],
    size: int | None = None,
    world_size: int = 1,
    overwrite: bool = False,
) -> Run:
    """Begins a run in a folder, or goes on with the one that is there.

    Args:
        command: what the results depend on beside pictures and format, which JSON holds.
        size: pictures of a shard; None: what the run has, or for a new one `SHARD_SIZE` or less.
        world_size: processes that begin it together.
        overwrite: begin anew; of what is in the folder, what a run wrote is removed.

    Raises:
        ConfigError: the folder holds a run of another command, or results of something else.
    """
    digest = sha256("\0".join(pictures).encode(errors="surrogatepass")).hexdigest()[:16]
    told = {
        **command,
        "pictures": f"{len(pictures)} (SHA-256 of their names {digest})",
        "format": form,
    }
    (folder / SHARDS).mkdir(parents=True, exist_ok=True)
    manifest = folder / MANIFEST
    with FileLock(folder / LOCK):
        if overwrite:
            clear(folder)
        if manifest.exists():
            size = _check(manifest, told, size)
        else:
            for name in RESULTS:
                if (folder / name).exists():
                    raise ConfigError(
                        f"{folder / name} is there already, and not of a run that can be gone on "
                        "with: name another folder, or --overwrite"
                    )
            if size is None:
                size = min(SHARD_SIZE, -(-len(pictures) // (world_size * _SHARDS_A_PROCESS)))
                size = SHARD_SIZE if world_size == 1 else size
            write_json(manifest, {"command": told, "shard": size, "categories": list(categories)})
    return Run(folder, pictures, size, form, categories)


def _check(manifest: Path, command: Mapping[str, object], size: int | None) -> int:
    """The pictures of a shard of the run that is there, if it is of this command."""
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
        before, size_before = dict(content["command"]), int(content["shard"])
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{manifest}: is no manifest of a run: name another folder, or --overwrite"
        ) from error
    before["shard"] = size_before
    for name, value in {**command, "shard": size or size_before}.items():
        if before.get(name) != value:
            raise ConfigError(
                f"{manifest.parent} holds a run with other {name}: {before.get(name)}, not "
                f"{value}. Name another folder, or begin anew with --overwrite"
            )
    return size_before


def clear(folder: Path) -> None:
    """Removes what a run wrote, but for what is drawn and the lock that may be held."""
    for name in (MANIFEST, *RESULTS):
        (folder / name).unlink(missing_ok=True)
    remove_parts(folder)
    for suffix in (".json", ".json.tmp", ".journal", ".lock"):
        for file in (folder / SHARDS).glob(f"[0-9]*{suffix}"):
            file.unlink()
