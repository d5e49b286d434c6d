"""Checks a wheel as its users meet it: what it holds, and what it does in empty environments.

    python tests/wheel/check.py dist/*.whl
    python tests/wheel/check.py dist/*.whl --python python3.12 --torch "torch==2.13.* torchvision"

An environment is made for each Python and each torch: by default the oldest Python and the newest
that is found, with the oldest torch and the newest. In an empty folder there run what a user calls
first (`doctor`, a step of training, a report, a prediction) and the operators' tests. It is removed
before the next one is made, for with CUDA torch takes 5 GB.

Exit status: 0; 1 when something is wrong or nothing could be run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OLDEST_PYTHON = (3, 10)
TORCHES = ("torch==2.11.* torchvision", "torch torchvision")
# A package index takes no file above it, unless asked.
MOST_BYTES = 100_000_000
# Where home folders and build folders lie.
MACHINE_PATHS = re.compile(rb"/(?:home|root|tmp|Users|build)/[\w./-]+")

FIRST = """
import sys, torch, detlite
detlite.load_config("coco/mask_rcnn_R_50_FPN_1x.yaml")
print(sys.version, torch.__version__, detlite.__file__)
"""
# The demo, which is found by name, with fewer pictures.
STEP = """
_BASE_: demo_shapes.yaml
OUTPUT_DIR: run
SOLVER: {MAX_ITER: 1}
DATASETS:
  CATALOG:
    - {name: shapes_train, type: shapes, path: shapes, split: train, images: 8, seed: 1}
    - {name: shapes_test, type: shapes, path: shapes, split: test, images: 4, seed: 1}
"""


def contents(wheel: Path, root: Path = ROOT) -> list[str]:
    """What is wrong with a wheel of the sources in `root`, a line each."""
    found = []
    if "-cp310-abi3-manylinux" not in wheel.name:
        found.append(f"the name {wheel.name} is not of one wheel for every Python and Linux")
    if wheel.stat().st_size > MOST_BYTES:
        found.append(f"{wheel.stat().st_size / 1e6:.0f} MB, more than a package index takes")
    expected = {f"detlite/{name}" for name in _files(root / "detlite")}
    expected |= {f"detlite/configs/{name}" for name in _files(root / "configs")}
    expected.add("detlite/_C.abi3.so")
    with zipfile.ZipFile(wheel) as archive:
        names = {info.filename for info in archive.infolist() if not info.is_dir()}
        described = {name for name in names if re.match(r"detlite-[^/]+\.dist-info/", name)}
        if not any(name.endswith("/LICENSE") for name in described):
            found.append("LICENSE is missing")
        found += [f"{name} is missing" for name in sorted(expected - names)]
        found += [f"{name} does not belong in it" for name in sorted(names - described - expected)]
        for name in sorted(names):
            content = archive.read(name)
            machines = [str(root), *([sys.prefix] if name.endswith(".so") else [])]
            paths = [path.encode() for path in machines if path.encode() in content]
            if name.endswith(".so"):
                paths += MACHINE_PATHS.findall(content)
            if paths:
                found.append(f"{name} names {paths[0].decode()}, a path of this machine")
    return found


def _files(folder: Path) -> Iterator[str]:
    for file in folder.rglob("*"):
        if file.is_file() and file.suffix != ".so" and "__pycache__" not in file.parts:
            yield file.relative_to(folder).as_posix()


def version_of(python: str) -> tuple[int, int] | None:
    """The version of an interpreter, or None where it does not run."""
    program = "import sys; print(*sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", program], capture_output=True, text=True)
    except OSError:
        return None
    return None if done.returncode else tuple(map(int, done.stdout.split()))  # type: ignore[return-value]


def pythons() -> list[str]:
    """The oldest Python that detlite takes, whether it is here or not, and the newest here."""
    oldest, *later = (f"python3.{minor}" for minor in range(OLDEST_PYTHON[1], 30))
    return [oldest, *[python for python in later if version_of(python)][-1:]]


class Environment:
    """An empty environment and an empty folder, in which commands run."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.folder = folder / "environment" / "bin", folder / "work"
        self.folder.mkdir()
        ours = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "DETLITE_CACHE"}
        self.variables = {key: value for key, value in os.environ.items() if key not in ours}
        self.variables |= {"DETLITE_CACHE": str(folder / "cache"), "PYTHONNOUSERSITE": "1"}

    def run(self, program: str, *arguments: str) -> str:
        """What a program of the environment prints.

        Raises:
            RuntimeError: a status other than 0.
        """
        start = time.monotonic()
        done = subprocess.run(
            [str(self.bin / program), *arguments],
            cwd=self.folder,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        told = " ".join((program, *arguments))
        print(f"  {time.monotonic() - start:6.1f} s  {told[:100]}", flush=True)
        if done.returncode:
            raise RuntimeError(f"{told}: status {done.returncode}\n{done.stdout[-5000:]}")
        return done.stdout


def check_environment(wheel: Path, python: str, torch: str, folder: Path) -> None:
    """Installs the wheel and runs it.

    Raises:
        RuntimeError: something failed.
    """
    subprocess.run([python, "-m", "venv", str(folder / "environment")], check=True)
    there = Environment(folder)
    there.run("pip", "install", "--quiet", *torch.split(), str(wheel))
    found = there.run("python", "-c", FIRST)
    print(f"  {found.strip()}")
    if str(there.bin.parent) not in found:
        raise RuntimeError("another detlite than the wheel's is imported")
    there.run("detlite", "doctor")
    (there.folder / "step.yaml").write_text(STEP)
    there.run("detlite", "train", "--config", "step.yaml")
    there.run("detlite", "report", "run", "--output", "report.html")
    if "</html>" not in (there.folder / "report.html").read_text(encoding="utf-8"):
        raise RuntimeError("report.html is not whole")
    picture = next(there.folder.rglob("*.png"))
    weights = ("--weights", "run/model_final.pth")
    there.run("detlite", "predict", *weights, "--input", str(picture), "--output", "found")
    # The operators' tests without the ones that compile csrc.
    shutil.copytree(ROOT / "tests" / "ops", there.folder / "tests" / "ops")
    shutil.copy(ROOT / "tests" / "conftest.py", there.folder / "tests")
    there.run("pip", "install", "--quiet", "pytest", "hypothesis", "setuptools")
    options = ("-q", "-x", "--import-mode=importlib", "-p", "no:cacheprovider")
    compiling = [f"--ignore=tests/ops/{name}.py" for name in ("test_cuda_on_cpu", "test_hip")]
    print(there.run("python", "-m", "pytest", *options, *compiling, "tests/ops").splitlines()[-1])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", action="append", help="(repeatable; the oldest and the newest)")
    parser.add_argument(
        "--torch", action="append", help=f"what pip installs (repeatable; {', '.join(TORCHES)})"
    )
    args = parser.parse_args(arguments)
    wheel = args.wheel.resolve()
    print(f"{wheel.name}, {wheel.stat().st_size / 1e6:.2f} MB")
    wrong = contents(wheel)
    ran = 0
    for python in args.python or pythons():
        if version_of(python) is None:
            print(f"skipped: {python} is not here, or does not run")
            continue
        for torch in args.torch or TORCHES:
            print(f"{python}, {torch}")
            ran += 1
            with tempfile.TemporaryDirectory() as folder:
                try:
                    check_environment(wheel, python, torch, Path(folder))
                except RuntimeError as error:
                    wrong.append(f"{python}, {torch}: {error}")
    if not ran:
        wrong.append("no environment could be made: none of the Pythons is here")
    for problem in wrong:
        print(f"problem: {problem}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
