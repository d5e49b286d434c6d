"""Makes an environment for a library, which shares torch and all else with the one that runs this.

    python benchmarks/learning_curve/install.py ultralytics environments/ultralytics

Packages that are there already are neither replaced nor written to.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

# The library, and those of its requirements that detlite's environment lacks; no one's own.
PACKAGES = {
    "ultralytics": [
        "ultralytics==8.4.190", "opencv-python-headless", "polars", "polars-runtime-32",
        "ultralytics-thop", "psutil", "requests", "urllib3", "certifi", "idna",
        "charset-normalizer",
    ],
    "mayaku": [
        "mayaku==2.0.1", "scipy", "pydantic", "pydantic-core", "annotated-types",
        "typing-inspection", "typer", "annotated-doc", "click", "shellingham", "rich",
        "markdown-it-py", "mdurl", "pygments",
    ],
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=PACKAGES)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    venv.create(args.folder, with_pip=True)
    python = args.folder / "bin" / "python"
    # --system-site-packages would share those of the system, not of the environment around.
    own = subprocess.check_output(
        [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"], text=True
    ).strip()
    (Path(own) / "shared.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    command = [python, "-m", "pip", "install", "--quiet", "--no-deps", *PACKAGES[args.library]]
    subprocess.run(command, check=True)
    subprocess.run([python, "-c", f"import torch, {args.library}; print(torch.__version__)"],
                   check=True)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
