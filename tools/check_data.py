"""`detlite check`, see `detlite/apps/cli/check.py`."""

from __future__ import annotations

import signal
import sys

if __name__ == "__main__":
    # Imports take seconds, in which Ctrl-C should leave no traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from detlite.apps.cli.check import main

    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
