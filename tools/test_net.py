"""Evaluate a checkpoint: the same as `detlite test`."""

import sys

from detlite.apps.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["test", *sys.argv[1:]]))
