"""Check a wheel: its files, and how it works in new environments.

    python tests/wheel/check.py dist/*.whl
    python tests/wheel/check.py dist/*.whl --python python3.12 --torch "torch==2.13.* torchvision"
    python tests/wheel/check.py dist/*.whl --files-only

By default there are four environments: the oldest supported Python and the newest that is
installed, each with the oldest supported torch and the newest. In each of them, in an empty folder,
run the first commands of a new user (`doctor`, a step of training, a report, a prediction) and the
tests of the operators. An environment is removed before the next one is made, because torch with
CUDA takes 5 GB.

Exit status: 0, or 1 if there is a problem or no environment could be made.
"""

import argparse
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OLDEST_PYTHON = (3, 10)
TORCH_VERSIONS = ("torch==2.11.* torchvision", "torch torchvision")
MAX_BYTES = 100_000_000  # the default limit of PyPI for a file
# End of a wheel's name -> file of the compiled operators.
EXTENSIONS = {
    r"-cp310-abi3-(manylinux|macosx)_\w+\.whl": "detlite/_C.abi3.so",
    r"-cp310-abi3-win_amd64\.whl": "detlite/_C.pyd",
    r"-py3-none-any\.whl": None,
}
# Folders that contain home folders or builds.
MACHINE_PATHS = re.compile(rb"/(?:home|root|tmp|Users|build)/[\w./-]+")

IMPORT = """
import sys, torch, detlite
detlite.load_config("coco/mask_rcnn_R_50_FPN_1x.yaml")
print(sys.version, torch.__version__, detlite.__file__)
"""
# The demo with fewer images. Its config is found by name.
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
    """Return the problems of a wheel that was built from the sources in `root`."""
    problems = []
    expected = {f"detlite/{name}" for name in _files(root / "detlite")}
    expected |= {f"detlite/configs/{name}" for name in _files(root / "configs")}
    for pattern, extension in EXTENSIONS.items():
        if re.search(pattern, wheel.name):
            expected |= {extension} - {None}
            break
    else:
        problems.append(f"the name {wheel.name} does not say that it is for every Python")
    if wheel.stat().st_size > MAX_BYTES:
        problems.append(f"{wheel.stat().st_size / 1e6:.0f} MB exceed the limit of PyPI")
    with zipfile.ZipFile(wheel) as archive:
        names = {info.filename for info in archive.infolist() if not info.is_dir()}
        metadata = {name for name in names if re.match(r"detlite-[^/]+\.dist-info/", name)}
        if not any(name.endswith("/LICENSE") for name in metadata):
            problems.append("LICENSE is missing")
        problems += [f"{name} is missing" for name in sorted(expected - names)]
        problems += [f"{name} is unexpected" for name in sorted(names - metadata - expected)]
        for name in sorted(names):
            content = archive.read(name)
            is_binary = name.endswith((".so", ".pyd"))
            local = [str(root), *([sys.prefix] if is_binary else [])]
            paths = [path.encode() for path in local if path.encode() in content]
            if is_binary:
                paths += MACHINE_PATHS.findall(content)
            if paths:
                problems.append(f"{name} contains {paths[0].decode()}, a path of this machine")
    return problems


def _files(folder: Path) -> Iterator[str]:
    for file in folder.rglob("*"):
        is_built = file.suffix in (".so", ".pyd") or "__pycache__" in file.parts
        if file.is_file() and not is_built:
            yield file.relative_to(folder).as_posix()


def version_of(python: str) -> tuple[int, int] | None:
    """Return the version of an interpreter, or None if it does not run."""
    program = "import sys; print(*sys.version_info[:2])"
    try:
        output = subprocess.check_output([python, "-c", program], text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    major, minor = map(int, output.split())
    return major, minor


def default_pythons() -> list[str]:
    """Return the oldest supported Python, installed or not, and the newest installed one."""
    oldest, *later = (f"python3.{minor}" for minor in range(OLDEST_PYTHON[1], 30))
    return [oldest, *[python for python in later if version_of(python)][-1:]]


def run_program(folder: Path, program: str, *arguments: str) -> str:
    """Run a program of the virtual environment in `folder`, and return its output.

    Raises:
        RuntimeError: the status is not 0.
    """
    removed = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    variables = {key: value for key, value in os.environ.items() if key not in removed}
    variables |= {"DETLITE_CACHE": str(folder / "cache"), "PYTHONNOUSERSITE": "1"}
    start = time.monotonic()
    done = subprocess.run(
        [str(folder / "environment" / "bin" / program), *arguments],
        cwd=folder / "work",
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    command = " ".join((program, *arguments))
    print(f"  {time.monotonic() - start:6.1f} s  {command[:100]}", flush=True)
    if done.returncode:
        raise RuntimeError(f"{command}: status {done.returncode}\n{done.stdout[-5000:]}")
    return done.stdout


def check_environment(wheel: Path, python: str, torch: str, folder: Path) -> None:
    """Install the wheel in a new environment and use it.

    Raises:
        RuntimeError: a command failed.
    """
    subprocess.run([python, "-m", "venv", str(folder / "environment")], check=True)
    run, work = partial(run_program, folder), folder / "work"
    work.mkdir()
    run("pip", "install", "--quiet", *torch.split(), str(wheel))
    output = run("python", "-c", IMPORT)
    print(f"  {output.strip()}")
    if str(folder / "environment") not in output:
        raise RuntimeError("the imported detlite is not the one of the wheel")
    run("detlite", "doctor")
    (work / "step.yaml").write_text(STEP)
    run("detlite", "train", "--config", "step.yaml")
    run("detlite", "report", "run", "--output", "report.html")
    if "</html>" not in (work / "report.html").read_text(encoding="utf-8"):
        raise RuntimeError("report.html is incomplete")
    image = next(work.rglob("*.png"))
    weights = ("--weights", "run/model_final.pth")
    run("detlite", "predict", *weights, "--input", str(image), "--output", "detections")
    run_operator_tests(folder)


def run_operator_tests(folder: Path) -> None:
    """Run the fast tests of tests/ops that need no checkout in the environment."""
    tests = folder / "work" / "tests"
    shutil.copytree(ROOT / "tests" / "ops", tests / "ops")
    for name in ("__init__.py", "builders.py", "conftest.py"):
        shutil.copy(ROOT / "tests" / name, tests)
    run_program(folder, "pip", "install", "--quiet", "pytest", "hypothesis", "setuptools")
    options = ("-q", "-x", "-m", "not slow", "--import-mode=importlib", "-p", "no:cacheprovider")
    output = run_program(folder, "python", "-m", "pytest", *options, "tests/ops")
    print(output.splitlines()[-1])


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser("check.py", description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--files-only", action="store_true", help="make no environment")
    parser.add_argument("--python", action="append", help="interpreter (repeatable)")
    parser.add_argument("--torch", action="append", help="packages to install (repeatable)")
    args = parser.parse_args()
    wheel = args.wheel.resolve()
    print(f"{wheel.name}, {wheel.stat().st_size / 1e6:.2f} MB")
    problems = contents(wheel)
    if not args.files_only:
        problems += try_out(wheel, args.python or default_pythons(), args.torch or TORCH_VERSIONS)
    for problem in problems:
        print(f"problem: {problem}")
    return 1 if problems else 0


def try_out(wheel: Path, pythons: Sequence[str], torches: Sequence[str]) -> list[str]:
    """Check the wheel with every Python and every torch; return the problems."""
    problems = []
    installed = [python for python in pythons if version_of(python)]
    print(f"installed of {', '.join(pythons)}: {', '.join(installed) or 'none'}")
    for python, torch in itertools.product(installed, torches):
        print(f"{python}, {torch}")
        with tempfile.TemporaryDirectory() as folder:
            try:
                check_environment(wheel, python, torch, Path(folder))
            except RuntimeError as error:
                problems.append(f"{python}, {torch}: {error}")
    return problems if installed else [f"none of {', '.join(pythons)} is installed"]


if __name__ == "__main__":
    sys.exit(main())
