"""Import optional packages."""

import importlib
from typing import Any

from detlite.config import ConfigError


def import_optional(package: str, requirement: str) -> Any:
    """Import a package, or raise a ConfigError that names the requirement to install."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        problem = f"cannot import {package} ({error})"
        raise ConfigError(f"{problem}: pip install '{requirement}'") from error
