"""Import the optional packages of the export formats."""

import importlib
from typing import Any

from detlite.config import ConfigError


def import_optional(package: str, extra: str) -> Any:
    """Import a package, or raise a ConfigError that names the extra of detlite to install."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(
            f"cannot import {package} ({error}): pip install 'detlite[{extra}]'"
        ) from error
