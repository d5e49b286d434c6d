"""Run the command line as a module: `python -m detlite` and `torchrun -m detlite`."""

import sys

from detlite.apps.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
