"""Configuration: the schema of all keys, loading and checking of YAML files, and ConfigError."""

from detlite.errors import ConfigError

from .files import expand_path, expand_variables, parse_yaml
from .loading import config_from, default_config, load_config
from .schema import KEYS, Key

__all__ = [
    "KEYS",
    "ConfigError",
    "Key",
    "config_from",
    "default_config",
    "expand_path",
    "expand_variables",
    "load_config",
    "parse_yaml",
]
