"""The error for everything that is wrong with a data set on disk."""


class DataError(ValueError):
    """A data set that cannot be used; the message names file, image or annotation, and remedy."""
