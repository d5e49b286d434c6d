"""Counts what the CUDA kernels cost, from their machine code, and checks it. No GPU is needed.

    python tools/cuda_report.py build/cuda/detlite/_C.abi3.so       # what is built, each generation
    python tools/cuda_report.py csrc/cuda/nms.cu --arch sm_75       # compiles what is named
    python tools/cuda_report.py                                     # all of csrc/cuda for sm_90

Prints a table of every kernel: registers, shared memory, how many of a multiprocessor's threads fit
at once, instructions. Fails where a kernel

* keeps values in local memory (only gradients may);
* has more registers than a block of as many threads as __launch_bounds__ names can have;
* has more instructions on sm_90 than its source allows, or its source allows it none. That is a
  comment of this form just before the kernel, a line for each choice of template arguments, or one
  line without them for all that have none of their own:

      // Budget: forward_kernel<float, float, 4> 900 instructions.

The table says nothing of time: a loop is counted once, however often it runs.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KERNELS = ROOT / "csrc" / "cuda"
BUDGET_ARCHITECTURE = "sm_90"
MOST_THREADS = 1024  # of a block
REGISTERS = 65536  # of a multiprocessor and of a block, on every generation below


@dataclass(frozen=True)
class Limits:
    """What a multiprocessor holds at once."""

    threads: int
    blocks: int
    shared_bytes: int


LIMITS = {
    "sm_75": Limits(1024, 16, 64 << 10),
    "sm_80": Limits(2048, 32, 164 << 10),
    "sm_86": Limits(1536, 16, 100 << 10),
    "sm_89": Limits(1536, 24, 100 << 10),
    "sm_90": Limits(2048, 32, 228 << 10),
    "sm_100": Limits(2048, 32, 228 << 10),
    "sm_120": Limits(1536, 24, 100 << 10),
}


@dataclass(frozen=True)
class Kernel:
    """One kernel as compiled for one generation of GPUs."""

    file: str  # without its suffix
    name: str
    types: str  # its template arguments, "<...>" or ""
    architecture: str
    registers: int
    shared_bytes: int  # with what the system takes, without what the launch gives
    threads: int | None  # the most in a block, where __launch_bounds__ says so
    instructions: int  # but NOPs
    local_accesses: int  # loads and stores of local memory

    def __str__(self) -> str:
        return f"{self.file}: {self.name}{self.types} on {self.architecture}"

    def registers_of_block(self) -> int:
        """A warp's are handed out by 256."""
        warps = -(-(self.threads or MOST_THREADS) // 32)
        return -(-self.registers * 32 // 256) * 256 * warps

    def occupancy(self) -> float | None:
        """The part of a multiprocessor's threads that its registers and shared memory let run."""
        limits = LIMITS.get(self.architecture)
        if limits is None or self.threads is None:
            return None
        blocks = min(
            limits.blocks,
            limits.threads // self.threads,
            REGISTERS // self.registers_of_block(),
            limits.shared_bytes // max(self.shared_bytes, 1),
        )
        return blocks * self.threads / limits.threads


# ---- Reading


def tool(name: str) -> str:
    """The path of one of CUDA's programs, from the toolkit or from Triton's package."""
    folders = [os.environ["PATH"]]
    if home := os.environ.get("CUDA_HOME"):
        folders.append(f"{home}/bin")
    folders.append("/usr/local/cuda/bin")
    folders += [f"{path}/triton/backends/nvidia/bin" for path in sys.path]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        raise SystemExit(f"error: no {name}: it comes with the CUDA toolkit and with Triton")
    return found


def output_of(*command: str, cwd: Path | None = None) -> str:
    folder = os.path.dirname(command[0])  # cuobjdump looks for nvdisasm in PATH
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd)
    if ran.returncode:
        raise SystemExit(f"error: {' '.join(command)}\n{ran.stdout}{ran.stderr}")
    return ran.stdout


def kernels_of(cubin: Path) -> list[Kernel]:
    dumped = output_of(tool("cuobjdump"), "-elf", "-res-usage", "-sass", str(cubin))
    names = re.findall(r"^\s+Function : (\S+)$", dumped, re.MULTILINE)
    demangled = output_of("c++filt", *names).splitlines() if names else []
    return list(parse_dump(dumped, dict(zip(names, demangled, strict=True))))


def parse_dump(dumped: str, demangled: dict[str, str]) -> Iterator[Kernel]:
    """What cuobjdump prints of one cubin: its sections, resources and machine code."""
    found = re.search(r"^\s+code for (sm_\d+)", dumped, re.MULTILINE)
    if not found:
        return
    bounds = {}
    for info in re.finditer(
        r"^\.nv\.info\.(\S+)$(.*?)(?=^\.|\Z)", dumped, re.MULTILINE | re.DOTALL
    ):
        size = re.search(
            r"EIATTR_MAX_THREADS\s+Format:\s+\w+\s+Value:\s+(\S+) (\S+) (\S+)", info[2]
        )
        if size:
            bounds[info[1]] = int(size[1], 16) * int(size[2], 16) * int(size[3], 16)
    usage = {
        name: (int(registers), int(shared))
        for name, registers, shared in re.findall(
            r"^ Function (\S+):\n\s+REG:(\d+) STACK:\d+ SHARED:(\d+)", dumped, re.MULTILINE
        )
    }
    # A namespace without a name is called by its file: how long its name is, then the name.
    file = re.search(r"_GLOBAL__N__[0-9a-f]+_(\d+)_(\w+)", dumped)
    stem = file[2][: int(file[1])].removesuffix("_cu") if file else ""
    for part in re.split(r"^\s+Function : ", dumped, flags=re.MULTILINE)[1:]:
        mangled, _, code = part.partition("\n")
        operations = re.findall(
            r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+ )?([A-Z]\w*)", code, re.MULTILINE
        )
        name, types = split_signature(demangled[mangled])
        registers, shared = usage[mangled]
        yield Kernel(
            stem,
            name,
            types,
            found[1],
            registers,
            shared,
            bounds.get(mangled),
            sum(operation != "NOP" for operation in operations),
            sum(operation in ("LDL", "STL") for operation in operations),
        )


def split_signature(demangled: str) -> tuple[str, str]:
    """The name and the template arguments of a function, without namespaces."""
    plain = re.sub(r"\(anonymous namespace\)::|\b\w+::", "", demangled)
    plain = plain.removeprefix("void ").replace("> >", ">>")
    depth, end = 0, 0
    for end, letter in enumerate(plain):  # noqa: B007
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "(" and depth == 0:
            break
    name, bracket, rest = plain[:end].partition("<")
    return name, bracket + rest


def extract(binary: Path, folder: Path) -> list[Path]:
    """The cubins in a library or an executable."""
    output_of(tool("cuobjdump"), "-xelf", "all", str(binary.resolve()), cwd=folder)
    return sorted(folder.glob("*.cubin"))


def compile_kernel(source: Path, architecture: str, folder: Path) -> Path:
    from torch.utils import cpp_extension

    # As in setup.py.
    flags = ["-O3", "-std=c++17", "-DTORCH_TARGET_VERSION=0x020b000000000000", "-DUSE_CUDA"]
    flags += [*cpp_extension.COMMON_NVCC_FLAGS, f"-I{ROOT}/csrc", f"-I{KERNELS}"]
    flags += [f"-isystem={path}" for path in cpp_extension.include_paths("cuda")]
    target = folder / f"{source.stem}.{architecture}.cubin"
    output_of(
        tool("nvcc"), "-cubin", f"-arch={architecture}", *flags, str(source), "-o", str(target)
    )
    return target


# ---- Checking

BUDGET = re.compile(r"^// Budget: (\w+)(<.*>)? (\d[\d,]*) instructions\.$", re.MULTILINE)
Budgets = dict[tuple[str, str], int]  # of a kernel's name and template arguments, "" for any


def budgets_of(source: str) -> Budgets:
    return {
        (name, types.replace("> >", ">>")): int(count.replace(",", ""))
        for name, types, count in BUDGET.findall(source)
    }


def failures(kernels: list[Kernel], sources: dict[str, str]) -> Iterator[str]:
    """What is wrong, a message each. `sources`: the text of each file of csrc/cuda, by its name."""
    budgets = {name: budgets_of(text) for name, text in sources.items()}
    shared: Budgets = {}
    for name in budgets:
        if name.endswith(".h"):
            shared |= budgets[name]
    for name, text in sources.items():
        if text.count("Budget:") != len(budgets[name]):
            yield f"{name}: a budget is not of the form '// Budget: NAME<TYPES> N instructions.'"
    met = set()
    for kernel in kernels:
        if kernel.local_accesses and not re.search("backward|gradient", kernel.name):
            yield (
                f"{kernel}: {kernel.local_accesses} loads and stores of local memory: values are "
                "spilled, or an array's index is not known when it is compiled"
            )
        if kernel.registers_of_block() > REGISTERS:
            bound = "as __launch_bounds__ says" if kernel.threads else "without __launch_bounds__"
            yield (
                f"{kernel}: {kernel.registers} registers in a block of "
                f"{kernel.threads or MOST_THREADS} threads, {bound}: no such block can start"
            )
        if kernel.architecture != BUDGET_ARCHITECTURE:
            continue
        own = shared | budgets.get(f"{kernel.file}.cu", {})
        key = next(
            (key for key in ((kernel.name, kernel.types), (kernel.name, "")) if key in own), None
        )
        if key is None:
            yield f"{kernel}: no budget; it has {kernel.instructions} instructions"
            continue
        met.add(key)
        if kernel.instructions > own[key]:
            yield f"{kernel}: {kernel.instructions} instructions, above its budget of {own[key]}"
    # A header's kernels are in several files: only all of them can say that one is missing.
    compiled = {
        f"{kernel.file}.cu" for kernel in kernels if kernel.architecture == BUDGET_ARCHITECTURE
    }
    complete = compiled.issuperset(name for name in sources if name.endswith(".cu"))
    for name, listed in budgets.items():
        for key in listed.keys() - met if complete or name in compiled else ():
            yield f"{name}: a budget for {''.join(key)}, which is no kernel"


# ---- Printing


def table(kernels: Iterable[Kernel]) -> str:
    """Markdown."""
    lines = [
        "| GPU | file | kernel | registers | shared bytes | threads | occupancy | instructions |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for k in kernels:
        occupancy = k.occupancy()
        lines.append(
            f"| {k.architecture} | {k.file} | `{k.name}{k.types}` | {k.registers} "
            f"| {k.shared_bytes} | {k.threads or 'any'} "
            f"| {'' if occupancy is None else format(occupancy, '.0%')} | {k.instructions} |"
        )
    return "\n".join(lines)


def order(kernel: Kernel) -> tuple[int, str, str, str]:
    return int(kernel.architecture[3:]), kernel.file, kernel.name, kernel.types


def main() -> int:
    """Returns the exit status: 1 where a check failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help=".cu files, cubins, or what holds some")
    parser.add_argument(
        "--arch", nargs="+", default=[BUDGET_ARCHITECTURE], help="what .cu files are compiled for"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="where to write the table")
    args = parser.parse_args()
    files = args.files or sorted(KERNELS.glob("*.cu"))
    sources = {path.name: path.read_text() for path in sorted(KERNELS.iterdir())}
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2) as pool:
        folder = Path(name)
        compiled = [
            pool.submit(compile_kernel, path, architecture, folder)
            for path in files
            if path.suffix == ".cu"
            for architecture in args.arch
        ]
        cubins = [job.result() for job in compiled] + [x for x in files if x.suffix == ".cubin"]
        for path in files:
            if path.suffix not in (".cu", ".cubin"):
                cubins += extract(path, folder)
        kernels = sorted((k for found in pool.map(kernels_of, cubins) for k in found), key=order)
    if not kernels:
        print(f"error: no kernels in {', '.join(map(str, files))}", file=sys.stderr)
        return 1
    if args.markdown:
        args.markdown.write_text(table(kernels) + "\n")
    print(table(kernels))
    wrong = list(failures(kernels, sources))
    for message in wrong:
        print(f"error: {message}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
