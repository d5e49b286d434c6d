"""Create an environment for a library. It shares torch and other packages with this environment.

    python -m benchmarks.learning_curve.install ultralytics environments/ultralytics

The packages of this environment are not changed.
"""

import argparse
import subprocess
import sysconfig
import venv
from pathlib import Path

# Each library, with its requirements that are not in detlite's environment.
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
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=PACKAGES)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    venv.create(args.folder, with_pip=True)
    python = args.folder / "bin" / "python"
    # The option system_site_packages would share the packages of the system instead.
    site_packages = subprocess.check_output(
        [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"], text=True
    ).strip()
    (Path(site_packages) / "shared.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    command = [python, "-m", "pip", "install", "--quiet", "--no-deps", *PACKAGES[args.library]]
    subprocess.run(command, check=True)
    subprocess.run([python, "-c", f"import torch, {args.library}; print(torch.__version__)"],
                   check=True)  # fmt: skip


if __name__ == "__main__":
    main()
