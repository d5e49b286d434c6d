"""Checks the CUDA kernels on whatever GPU there is, and times them: the first thing to run on one.

    python tools/gpu_check.py --out output/gpu_check

Builds the kernels for the GPU where there is a CUDA compiler (else detlite is taken as installed),
then runs every step in a process of its own; gpu_steps.py and gpu_benchmark.py have the steps. Each
has its own verdict: passed, failed, or skipped for the reason named. Writes report.json, report.md
and the output of each step.

Needs torch and detlite's kernels. What needs yacs, pytest, torchvision or the CUDA toolkit's
programs is skipped, or does without, where these are missing. Without a GPU it says so and runs
what can be run on the CPU. Ends with status 1 where a step failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 1200  # for one step
SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")


@dataclass
class Verdict:
    """How a step went; `detail` is the reason, or the last lines that it printed."""

    step: str
    verdict: str
    seconds: float = 0.0
    detail: str = ""


class Check:
    """Runs steps one after another and keeps their verdicts."""

    def __init__(self, out: Path, only: list[str]) -> None:
        self.out, self.only = out, only
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.verdicts: list[Verdict] = []
        self.environment = dict(os.environ)
        out.mkdir(parents=True, exist_ok=True)

    def chosen(self, step: str) -> bool:
        return not self.only or any(part in step for part in self.only)

    def skip(self, step: str, why: str) -> None:
        if self.chosen(step):
            self._add(Verdict(step, "skipped", detail=why))

    def run(self, step: str, command: list[str], **variables: str) -> bool:
        """Runs a command; status 0 is a pass. Its output goes to a file."""
        if not self.chosen(step):
            return False
        start = time.monotonic()
        log = self.out / f"{step}.txt"
        with log.open("w") as file:
            try:
                status: int | str = subprocess.run(
                    command,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    cwd=ROOT,
                    env={**self.environment, **variables},
                    timeout=SECONDS,
                ).returncode
            except subprocess.TimeoutExpired:
                status = f"no end in {SECONDS} s"
        detail = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
        if status:
            detail = f"status {status}\n{detail}"
        verdict = "failed" if status else "passed"
        self._add(Verdict(step, verdict, time.monotonic() - start, detail))
        return not status

    def step(self, name: str, needs: tuple[str, ...] = (), **variables: str) -> None:
        """A step of gpu_steps.py."""
        missing = [package for package in needs if importlib.util.find_spec(package) is None]
        if missing:
            self.skip(name, f"needs {' and '.join(missing)}")
        else:
            self.run(name, self.steps_command(name), **variables)

    def steps_command(self, name: str) -> list[str]:
        return [sys.executable, str(ROOT / "tools" / "gpu_steps.py"), name, self.device]

    def _add(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        print(f"{verdict.step:22} {verdict.verdict:8} {verdict.seconds:7.1f} s", flush=True)
        if verdict.verdict != "passed":
            print("    " + verdict.detail.replace("\n", "\n    "), flush=True)


def program(name: str) -> str | None:
    """One of CUDA's programs."""
    folders = [os.environ.get("PATH", ""), f"{os.environ.get('CUDA_HOME', '')}/bin"]
    return shutil.which(name, path=os.pathsep.join([*folders, "/usr/local/cuda/bin"]))


def build(check: Check) -> None:
    """Into a copy of the package, for this GPU alone, which the other steps then take."""
    if not check.chosen("build"):
        return
    cuda = program("nvcc") is not None and torch.version.cuda is not None
    if check.device == "cuda" and not cuda:
        check.skip("build", "no CUDA compiler: detlite is taken as installed")
        return
    package = check.out.resolve() / "package"
    shutil.rmtree(package, ignore_errors=True)
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "detlite", package / "detlite", ignore=ignored)
    variables = {"DETLITE_CUDA": "1" if cuda else "0"}
    if check.device == "cuda":
        variables["TORCH_CUDA_ARCH_LIST"] = ".".join(map(str, torch.cuda.get_device_capability()))
    elif "TORCH_CUDA_ARCH_LIST" not in os.environ:
        variables["TORCH_CUDA_ARCH_LIST"] = "9.0"
    folders = ["--build-temp", str(package / "objects"), "--build-lib", str(package)]
    command = [sys.executable, "setup.py", "--quiet", "build_ext", *folders]
    if check.run("build", command, **variables):
        check.environment["PYTHONPATH"] = str(package)


def report_costs(check: Check) -> None:
    """What the kernels cost by their machine code, where they were built here."""
    built = sorted((check.out / "package" / "detlite").glob("_C*.so"))
    if not built:
        check.skip("costs", "nothing was built here")
        return
    tool = str(ROOT / "tools" / "cuda_report.py")
    check.run("costs", [sys.executable, tool, str(built[0])])


def sanitize(check: Check) -> None:
    found = program("compute-sanitizer")
    for tool in SANITIZERS:
        if check.device != "cuda" or found is None:
            check.skip(tool, "no GPU" if check.device != "cuda" else "no compute-sanitizer")
            continue
        options = ["--tool", tool, "--error-exitcode", "9"]
        # Every tensor is an allocation of its own, so that what lies beyond it is noticed.
        command = [found, *options, *check.steps_command("calls")]
        check.run(tool, command, PYTORCH_NO_CUDA_MEMORY_CACHING="1")


def benchmark(check: Check) -> None:
    if check.device != "cuda":
        check.skip("benchmark", "no GPU")
        return
    tool = str(ROOT / "tools" / "gpu_benchmark.py")
    rows = str(check.out.resolve() / "benchmark.json")
    check.run("benchmark", [sys.executable, tool, "--json", rows])


def hardware() -> dict[str, str]:
    found = {"torch": torch.__version__, "python": platform.python_version()}
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found["gpu"] = properties.name
        found["generation"] = f"sm_{properties.major}{properties.minor}"
        found["multiprocessors"] = str(properties.multi_processor_count)
        found["memory"] = f"{properties.total_memory / 1e9:.0f} GB"
        found["cuda"] = str(torch.version.cuda)
    else:
        found["gpu"] = "none: only what runs on the CPU was run"
    return found


def write(check: Check, found: dict[str, str]) -> None:
    rows = check.out / "benchmark.json"
    report = {
        "hardware": found,
        "steps": [asdict(verdict) for verdict in check.verdicts],
        "benchmark": json.loads(rows.read_text()) if rows.exists() else [],
    }
    (check.out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    lines = ["# GPU check", "", *(f"- {key}: {value}" for key, value in found.items())]
    lines += ["", "| step | verdict | seconds | |", "|---|---|---|---|"]
    for verdict in check.verdicts:
        reason = verdict.detail.splitlines()[0] if verdict.verdict != "passed" else ""
        lines.append(f"| {verdict.step} | {verdict.verdict} | {verdict.seconds:.1f} | {reason} |")
    for step in ("benchmark", "costs"):
        log = check.out / f"{step}.txt"
        if log.exists():
            table = [line for line in log.read_text().splitlines() if line.startswith("|")]
            lines += ["", f"## {step.capitalize()}", "", *table]
    (check.out / "report.md").write_text("\n".join(lines) + "\n")


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "output" / "gpu_check", metavar="FOLDER")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="STEP", help="steps with this in it"
    )
    args = parser.parse_args()
    check = Check(args.out, args.only)
    found = hardware()
    print("\n".join(f"{key}: {value}" for key, value in found.items()))

    build(check)
    check.step("calls", CUDA_LAUNCH_BLOCKING="1")
    if check.device == "cuda":
        check.step("tests", needs=("pytest", "numpy"))
    else:
        check.skip("tests", "no GPU")
    sanitize(check)
    check.step("large")
    check.step("stream")
    check.step("graph")
    check.step("bad_index")
    check.step("training", needs=("yacs", "pycocotools"))
    benchmark(check)
    report_costs(check)
    write(check, found)
    print(f"{args.out / 'report.md'} and report.json have it all")
    return 1 if any(verdict.verdict == "failed" for verdict in check.verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
