"""Configuration: the schema of all keys, loading and checking of YAML files, and ConfigError."""

from detlite.errors import ConfigError

from .extensions import declare_keys
from .files import expand_path, expand_variables, parse_yaml
from .key import above, each, expect, fraction, in_range, not_negative, one_of, positive, strings
from .loading import Overrides, as_list, changed, config_from, default_config, load_config
from .schema import KEYS, Key

__all__ = [
    "KEYS", "ConfigError", "Key", "Overrides", "above", "as_list", "changed", "config_from",
    "declare_keys", "default_config", "each", "expand_path", "expand_variables", "expect",
    "fraction", "in_range", "load_config", "not_negative", "one_of", "parse_yaml", "positive",
    "strings",
]  # fmt: skip
