"""Progress of work that can take long."""

import sys
from typing import Any

from tqdm import tqdm


def progress_bar(*args: Any, **options: Any) -> tqdm:
    """Return a bar of tqdm on standard error; in a log file, a line every ten seconds."""
    if sys.stderr is not None and sys.stderr.isatty():
        return tqdm(*args, delay=1, **options)
    line = "{desc} {n_fmt}/{total_fmt}{unit} [{elapsed}<{remaining}, {rate_fmt}]\n"
    return tqdm(*args, mininterval=10, delay=10, bar_format=line, **options)
