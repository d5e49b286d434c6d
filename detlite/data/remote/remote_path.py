"""Files and folders at URLs, used like local paths."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from detlite.files import cache
from detlite.files.atomic_write import atomic_path
from detlite.files.errors import DataError
from detlite.files.retry import without_secrets

from .filesystem import copy_file, file_version, read


@dataclass(frozen=True)
class RemotePath:
    """A file or folder at an fsspec URL: `s3://bucket/folder`, `zip://folder::https://a/b.zip`.

    `cache_bytes` is the size limit of the cache for files that are read, see `FileCache`.
    """

    url: str
    cache_bytes: int = 0

    def __truediv__(self, name: str | Path) -> RemotePath:
        """Return a file in the folder. In HTTP URLs, `name` is quoted and precedes the query."""
        path = str(PurePosixPath(name))
        if path == ".":
            return self
        parts = self.url.split("::")
        # In simplecache::s3://bucket the folder is in the second part.
        index = next((n for n, part in enumerate(parts) if "://" in part), 0)
        protocol, mark, folder = parts[index].rpartition("://")
        query = ""
        if protocol in ("http", "https"):
            folder, question, query = folder.partition("?")
            path, query = quote(path), question + query
        parts[index] = f"{protocol}{mark}{folder.rstrip('/')}{'/' * bool(folder)}{path}{query}"
        return replace(self, url="::".join(parts))

    def __str__(self) -> str:
        return without_secrets(self.url)

    @property
    def name(self) -> str:
        return PurePosixPath(self.url.split("::")[0].partition("?")[0]).name

    @property
    def stem(self) -> str:
        return PurePosixPath(self.name).stem

    def read_bytes(self) -> bytes:
        """Return the content, cached if possible. Raises the errors of `filesystem.read`."""
        if files := self._cache():
            return files.read(cache.key(self.url), lambda: read(self.url))
        return read(self.url)

    def forget(self) -> bool:
        """Delete the cached copy. Returns True if there was one."""
        files = self._cache()
        return files is not None and files.forget(cache.key(self.url))

    def _cache(self) -> cache.FileCache | None:
        container = self.url.split("::")[-1]
        local = "://" not in container or container.startswith(("file://", "local://"))
        return None if local else cache.file_cache("remote", self.cache_bytes)

    def current_copy(self) -> Path:
        """Return a local copy of the current content, which stays in the cache.

        Raises:
            DataError: the file does not exist, or there is no space for the copy.
        """
        try:
            folder = cache.folder() or cache.process_folder()
            folder.mkdir(parents=True, exist_ok=True)
            with cache.exclusive_lock(folder / f"{cache.key('copy', self.url)}.lock"):
                version = file_version(self.url)
                copy = folder / f"{cache.key('copy', self.url, *astuple(version))}.copy"
                complete = copy.is_file() and version.size in (None, copy.stat().st_size)
                if version.version is None or not complete:
                    with atomic_path(copy, unique=True) as temporary:
                        copy_file(self.url, temporary)
                cache.mark_used(copy)
        except FileNotFoundError as error:
            raise DataError(f"{self}: the file does not exist") from error
        except OSError as error:
            raise DataError(
                f"{self}: no space for a local copy ({error}). Set {cache.VARIABLE} to a folder "
                "with space"
            ) from error
        return copy
