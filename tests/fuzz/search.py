"""Run the tests of tests/fuzz with different random numbers for some time.

    python tests/fuzz/search.py --minutes 60

The search ends with status 1 at the first failing test, after hypothesis has printed the smallest
failing input and how to repeat it. A crash, a process that takes over half an hour and one that
uses over 16 GiB of address space end it too; the printed command repeats them.
"""

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent


def main() -> int:
    """Run the command line; return 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    parser.add_argument("tests", nargs="*", default=sorted(map(str, FOLDER.glob("test_fuzz_*.py"))))
    args = parser.parse_args()
    end, seed = time.monotonic() + 60 * args.minutes, args.seed
    while time.monotonic() < end:
        for test in args.tests:
            command = [sys.executable, "-m", "pytest", "-x", f"--hypothesis-seed={seed}", test]
            command += ["-o", "faulthandler_timeout=600", "--disable-warnings"]
            # At most half an hour and 16 GiB of address space.
            limited = ["timeout", "1800", "prlimit", f"--as={16 * 2**30}", *command]
            environment = os.environ | {"DETLITE_FUZZ": "long"}
            status = subprocess.run(limited, env=environment, cwd=FOLDER.parents[1]).returncode
            if status:
                print(f"status {status}; repeat with: DETLITE_FUZZ=long {' '.join(command)}")
                return 1
        seed += 1
    print(f"{seed - args.seed} searches of {len(args.tests)} files: no failure")
    return 0


if __name__ == "__main__":
    sys.exit(main())
