"""The error for everything that users can fix in a YAML file or on the command line."""


def one_line(message: object) -> str:
    """Escape line breaks and control characters, which names in a message can contain."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(message))


class ConfigError(ValueError):
    """A config key or value is invalid; the message says where and what to do."""
