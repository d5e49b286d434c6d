"""The error for everything that users can fix in a YAML file or on the command line."""


class ConfigError(ValueError):
    """A config key or value is invalid; the message says where and what to do."""
