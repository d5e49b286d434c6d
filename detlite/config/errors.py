"""The error for everything that a user can mend in a YAML file or on the command line."""


class ConfigError(ValueError):
    """A config key or value that cannot be used; the message names source, key and remedy."""
