"""Train a model: the same as `detlite train`."""

import sys

from detlite.apps.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
