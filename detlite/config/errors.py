"""The error for everything that users can fix in a YAML file or on the command line."""


def one_line(message: object) -> str:
    """Return a message with escaped line breaks and control characters, which names can contain."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in str(message))


class ConfigError(ValueError):
    """A config key or value is invalid; the message says where and what to do."""
