"""Check the CUDA kernels on the GPU of this machine, and time them.

    python tools/gpu_check.py --out output/gpu_check

Run this first on a new GPU. If there is a CUDA compiler, the script builds the kernels for the GPU;
otherwise, it uses the installed detlite. Then it runs each step of gpu_steps.py and the timings of
gpu_benchmark.py in a separate process. Each step passes, fails, or is skipped with a reason.
The script writes report.json, report.md and the output of each step, and exits with status 1 if a
step failed.

Needs torch, pycocotools and detlite's kernels. Steps that need yacs, pytest or programs of the CUDA
toolkit are skipped if these are missing. Without a GPU, only the steps that can run on the CPU run.
"""

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
from cuda_report import find_program

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 1200  # limit per step
SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")


@dataclass
class Verdict:
    """Result of a step. `detail` is the reason for skipping or the last lines of the output."""

    step: str
    verdict: str
    seconds: float = 0.0
    detail: str = ""


class Check:
    """Run steps one after another and collect their verdicts."""

    def __init__(self, out: Path, only: list[str]) -> None:
        self.out, self.only = out, only
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.verdicts: list[Verdict] = []
        self.environment = dict(os.environ)
        out.mkdir(parents=True, exist_ok=True)

    def is_selected(self, step: str) -> bool:
        return not self.only or any(part in step for part in self.only)

    def skip(self, step: str, reason: str) -> None:
        if self.is_selected(step):
            self._add(Verdict(step, "skipped", detail=reason))

    def run(self, step: str, command: list[str], **variables: str) -> bool:
        """Run a command, with its output in a file. Return True if its exit status is 0."""
        if not self.is_selected(step):
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
                status = f"not finished after {SECONDS} s"
        detail = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
        if status:
            detail = f"status {status}\n{detail}"
        verdict = "failed" if status else "passed"
        self._add(Verdict(step, verdict, time.monotonic() - start, detail))
        return not status

    def step(self, name: str, needs: tuple[str, ...] = (), **variables: str) -> None:
        """Run a step of gpu_steps.py."""
        missing = [package for package in needs if importlib.util.find_spec(package) is None]
        if missing:
            self.skip(name, f"missing packages: {', '.join(missing)}")
        else:
            self.run(name, self.steps_command(name), **variables)

    def steps_command(self, name: str) -> list[str]:
        return [sys.executable, str(ROOT / "tools" / "gpu_steps.py"), name, self.device]

    def _add(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        print(f"{verdict.step:22} {verdict.verdict:8} {verdict.seconds:7.1f} s", flush=True)
        if verdict.verdict != "passed":
            print("    " + verdict.detail.replace("\n", "\n    "), flush=True)


def build(check: Check) -> None:
    """Build a copy of the package for this GPU, for the other steps."""
    if not check.is_selected("build"):
        return
    cuda = find_program("nvcc") is not None and torch.version.cuda is not None
    if check.device == "cuda" and not cuda:
        check.skip("build", "no CUDA compiler, using the installed detlite")
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


def report_resources(check: Check) -> None:
    """Report the resources of the kernels, if they were built by this script."""
    built = sorted((check.out / "package" / "detlite").glob("_C*.so"))
    if not built:
        check.skip("resources", "the kernels were not built here")
        return
    tool = str(ROOT / "tools" / "cuda_report.py")
    check.run("resources", [sys.executable, tool, str(built[0])])


def sanitize(check: Check) -> None:
    sanitizer = find_program("compute-sanitizer")
    for tool in SANITIZERS:
        if check.device != "cuda" or sanitizer is None:
            check.skip(tool, "no GPU" if check.device != "cuda" else "no compute-sanitizer")
            continue
        options = ["--tool", tool, "--error-exitcode", "9"]
        # Each tensor is a separate allocation, so that accesses beyond its end are detected.
        command = [sanitizer, *options, *check.steps_command("calls")]
        check.run(tool, command, PYTORCH_NO_CUDA_MEMORY_CACHING="1")


def benchmark(check: Check) -> None:
    if check.device != "cuda":
        check.skip("benchmark", "no GPU")
        return
    tool = str(ROOT / "tools" / "gpu_benchmark.py")
    rows = str(check.out.resolve() / "benchmark.json")
    check.run("benchmark", [sys.executable, tool, "--json", rows])


def hardware() -> dict[str, str]:
    info = {"torch": torch.__version__, "python": platform.python_version()}
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        info["gpu"] = properties.name
        info["generation"] = f"sm_{properties.major}{properties.minor}"
        info["multiprocessors"] = str(properties.multi_processor_count)
        info["memory"] = f"{properties.total_memory / 1e9:.0f} GB"
        info["cuda"] = str(torch.version.cuda)
    else:
        info["gpu"] = "none: only the steps for the CPU were run"
    return info


def write_report(check: Check, info: dict[str, str]) -> None:
    rows = check.out / "benchmark.json"
    report = {
        "hardware": info,
        "steps": [asdict(verdict) for verdict in check.verdicts],
        "benchmark": json.loads(rows.read_text()) if rows.exists() else [],
    }
    (check.out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    lines = ["# GPU check", "", *(f"- {key}: {value}" for key, value in info.items())]
    lines += ["", "| step | verdict | seconds | |", "|---|---|---|---|"]
    for verdict in check.verdicts:
        reason = verdict.detail.splitlines()[0] if verdict.verdict != "passed" else ""
        lines.append(f"| {verdict.step} | {verdict.verdict} | {verdict.seconds:.1f} | {reason} |")
    for step in ("benchmark", "resources"):
        log = check.out / f"{step}.txt"
        if log.exists():
            table = [line for line in log.read_text().splitlines() if line.startswith("|")]
            lines += ["", f"## {step.capitalize()}", "", *table]
    (check.out / "report.md").write_text("\n".join(lines) + "\n")


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "output" / "gpu_check", metavar="FOLDER")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="STEP",
        help="run only steps whose name contains one of these",
    )
    args = parser.parse_args()
    check = Check(args.out, args.only)
    info = hardware()
    print("\n".join(f"{key}: {value}" for key, value in info.items()))

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
    check.step("invalid_arguments")
    check.step("training", needs=("yacs",))
    benchmark(check)
    report_resources(check)
    write_report(check, info)
    print(f"Wrote {args.out / 'report.md'} and report.json")
    return 1 if any(verdict.verdict == "failed" for verdict in check.verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
