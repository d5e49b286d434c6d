"""Report and check the resources of the CUDA kernels by their machine code. Needs no GPU.

    python tools/cuda_report.py build/cuda/detlite/_C.abi3.so    # all GPU generations of a build
    python tools/cuda_report.py csrc/cuda/nms.cu --arch sm_75    # compile and report one file
    python tools/cuda_report.py                                  # all of csrc/cuda for sm_90

Prints a table of all kernels: registers, shared memory, threads per block, occupancy, number of
instructions. The exit status is 1 if a kernel

* keeps values in local memory (allowed only for gradients);
* needs too many registers for the number of threads in its __launch_bounds__;
* has more instructions on sm_90 than its budget, or has no budget. A budget is a comment above the
  kernel, for certain template arguments or, without arguments, for all others:

      // Budget: forward_kernel<float, float, 4> 900 instructions.

Instruction counts do not measure time: the instructions of a loop count once.
"""

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
MAX_THREADS = 1024  # per block
REGISTERS = 65536  # per multiprocessor and per block, on all generations below


@dataclass(frozen=True)
class Limits:
    """Resources of a multiprocessor."""

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
    """Resources of a kernel, compiled for one GPU generation."""

    file: str  # without suffix
    name: str
    types: str  # template arguments, "<...>" or ""
    architecture: str
    registers: int
    shared_bytes: int  # static shared memory, including the part that the system reserves
    threads: int | None  # maximum per block, from __launch_bounds__
    instructions: int  # without NOPs
    local_accesses: int  # loads and stores of local memory

    def __str__(self) -> str:
        return f"{self.file}: {self.name}{self.types} on {self.architecture}"

    def registers_of_block(self) -> int:
        """Return the registers of a full block. The hardware allocates 256 at a time per warp."""
        warps = -(-(self.threads or MAX_THREADS) // 32)
        return -(-self.registers * 32 // 256) * 256 * warps

    def occupancy(self) -> float | None:
        """Return the fraction of a multiprocessor's threads that can run simultaneously."""
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


def find_program(name: str) -> str | None:
    """Return the path of a program of the CUDA toolkit or of Triton; None if it is missing."""
    folders = [os.environ.get("PATH", "")]
    if home := os.environ.get("CUDA_HOME"):
        folders.append(f"{home}/bin")
    folders.append("/usr/local/cuda/bin")
    folders += [f"{path}/triton/backends/nvidia/bin" for path in sys.path]
    return shutil.which(name, path=os.pathsep.join(folders))


def run_program(name: str, *arguments: str, cwd: Path | None = None) -> str:
    """Run a program and return its output."""
    path = find_program(name)
    if path is None:
        raise SystemExit(f"error: cannot find {name}. Install the CUDA toolkit and set CUDA_HOME.")
    command = [path, *arguments]
    folder = os.path.dirname(path)  # cuobjdump looks for nvdisasm in PATH
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd)
    if result.returncode:
        raise SystemExit(f"error: {' '.join(command)}\n{result.stdout}{result.stderr}")
    return result.stdout


def kernels_of(cubin: Path) -> list[Kernel]:
    dumped = run_program("cuobjdump", "-elf", "-res-usage", "-sass", str(cubin))
    names = re.findall(r"^\s+Function : (\S+)$", dumped, re.MULTILINE)
    demangled = run_program("c++filt", *names).splitlines() if names else []
    return list(parse_dump(dumped, dict(zip(names, demangled, strict=True))))


def parse_dump(dumped: str, demangled: dict[str, str]) -> Iterator[Kernel]:
    """Parse the output of cuobjdump for one cubin: sections, resources and machine code."""
    architecture = re.search(r"^\s+code for (sm_\d+)", dumped, re.MULTILINE)
    if not architecture:
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
    # The mangled name of an anonymous namespace contains the file name and its length.
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
            architecture[1],
            registers,
            shared,
            bounds.get(mangled),
            sum(operation != "NOP" for operation in operations),
            sum(operation in ("LDL", "STL") for operation in operations),
        )


def split_signature(demangled: str) -> tuple[str, str]:
    """Return the name and the template arguments of a function, without namespaces."""
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
    """Extract the cubins of a library or an executable."""
    run_program("cuobjdump", "-xelf", "all", str(binary.resolve()), cwd=folder)
    return sorted(folder.glob("*.cubin"))


def compile_kernel(source: Path, architecture: str, folder: Path) -> Path:
    from torch.utils import cpp_extension

    # The flags of setup.py.
    flags = ["-O3", "-std=c++17", "-DTORCH_TARGET_VERSION=0x020b000000000000", "-DUSE_CUDA"]
    flags += [*cpp_extension.COMMON_NVCC_FLAGS, f"-I{ROOT}/csrc", f"-I{KERNELS}"]
    flags += [f"-isystem={path}" for path in cpp_extension.include_paths("cuda")]
    target = folder / f"{source.stem}.{architecture}.cubin"
    run_program("nvcc", "-cubin", f"-arch={architecture}", *flags, str(source), "-o", str(target))
    return target


# ---- Checking

BUDGET = re.compile(r"^// Budget: (\w+)(<.*>)? (\d[\d,]*) instructions\.$", re.MULTILINE)
Budgets = dict[tuple[str, str], int]  # key: kernel name and template arguments, "" for any


def budgets_of(source: str) -> Budgets:
    return {
        (name, types.replace("> >", ">>")): int(count.replace(",", ""))
        for name, types, count in BUDGET.findall(source)
    }


def failures(kernels: list[Kernel], sources: dict[str, str]) -> Iterator[str]:
    """Return the messages of all failed checks.

    Args:
        kernels: the compiled kernels.
        sources: the text of each file in csrc/cuda by file name.
    """
    budgets = {name: budgets_of(text) for name, text in sources.items()}
    shared: Budgets = {}
    for name in budgets:
        if name.endswith(".h"):
            shared |= budgets[name]
    for name, text in sources.items():
        if text.count("Budget:") != len(budgets[name]):
            yield f"{name}: a budget must have the form '// Budget: NAME<TYPES> N instructions.'"
    used = set()
    for kernel in kernels:
        if kernel.local_accesses and not re.search("backward|gradient", kernel.name):
            yield (
                f"{kernel}: {kernel.local_accesses} loads and stores of local memory. Registers "
                "are spilled, or an array index is not known at compile time."
            )
        if kernel.registers_of_block() > REGISTERS:
            bound = "from __launch_bounds__" if kernel.threads else "without __launch_bounds__"
            yield (
                f"{kernel}: {kernel.registers} registers are too many for a block of "
                f"{kernel.threads or MAX_THREADS} threads ({bound})"
            )
        if kernel.architecture != BUDGET_ARCHITECTURE:
            continue
        limits = shared | budgets.get(f"{kernel.file}.cu", {})
        key = next(
            (key for key in ((kernel.name, kernel.types), (kernel.name, "")) if key in limits), None
        )
        if key is None:
            yield f"{kernel}: no budget. The kernel has {kernel.instructions} instructions."
            continue
        used.add(key)
        if kernel.instructions > limits[key]:
            yield f"{kernel}: {kernel.instructions} instructions, above its budget of {limits[key]}"
    # Several files compile the kernels of headers, so check their budgets only with all files.
    compiled = {
        f"{kernel.file}.cu" for kernel in kernels if kernel.architecture == BUDGET_ARCHITECTURE
    }
    complete = compiled.issuperset(name for name in sources if name.endswith(".cu"))
    for name, listed in budgets.items():
        for key in listed.keys() - used if complete or name in compiled else ():
            yield f"{name}: has a budget for {''.join(key)}, but no such kernel: remove the budget"


# ---- Printing


def table(kernels: Iterable[Kernel]) -> str:
    """Format the kernels as a Markdown table."""
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
    """Return the exit status: 1 if a check failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help=".cu files, cubins or libraries")
    parser.add_argument(
        "--arch", nargs="+", default=[BUDGET_ARCHITECTURE], help="architectures for .cu files"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table to a file")
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
        kernels = sorted(
            (k for cubin_kernels in pool.map(kernels_of, cubins) for k in cubin_kernels), key=order
        )
    if not kernels:
        print(f"error: found no kernels in {', '.join(map(str, files))}", file=sys.stderr)
        return 1
    if args.markdown:
        args.markdown.write_text(table(kernels) + "\n")
    print(table(kernels))
    errors = list(failures(kernels, sources))
    for message in errors:
        print(f"error: {message}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
