"""tools/cuda_report.py with the recorded cuobjdump output of two small kernels."""

import dataclasses
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="module")
def report():
    root = Path(__file__).parents[2]
    return SimpleNamespace(**runpy.run_path(str(root / "tools" / "cuda_report.py")))


@pytest.fixture(scope="module")
def kernels(report):
    dumped = (Path(__file__).parent / "cuobjdump.txt").read_text()
    prefix = "_ZN7detlite32_GLOBAL__N__282bb1a8_7_tiny_cu_a11"
    names = {
        f"{prefix}copy_kernelIfLi1EEEvPKT_PS2_": (
            "void detlite::(anonymous namespace)::copy_kernel<float, 1>(float const*, float*)"
        ),
        f"{prefix}turn_kernelEPii": "detlite::(anonymous namespace)::turn_kernel(int*, int)",
    }
    return list(report.parse_dump(dumped, names))


BUDGETS = """
// Copies.
// Budget: copy_kernel<float, 1> 7 instructions.
template <typename F, int V>
// Budget: turn_kernel 1,000 instructions.
"""


def messages(report, kernels, text=BUDGETS):
    return list(report.failures(kernels, {"tiny.cu": text}))


def test_dump_is_parsed(kernels):
    copy, turn = kernels
    assert (copy.file, copy.name, copy.types) == ("tiny", "copy_kernel", "<float, 1>")
    assert (copy.architecture, copy.registers, copy.threads) == ("sm_90", 10, 128)
    assert (copy.instructions, copy.local_accesses) == (7, 0)
    assert (turn.name, turn.types, turn.threads, turn.instructions) == ("turn_kernel", "", None, 10)


@pytest.mark.parametrize(
    ("demangled", "expected"),
    [
        ("void a::(anonymous namespace)::k<c10::Half, 8>(long)", ("k", "<Half, 8>")),
        ("void a::k<float, a::Op<c10::Half, float> >(int)", ("k", "<float, Op<Half, float>>")),
        ("a::k(void (*)(int))", ("k", "")),
    ],
)
def test_namespaces_are_removed_from_names(report, demangled, expected):
    assert report.split_signature(demangled) == expected


def test_occupancy(kernels):
    copy = dataclasses.replace(kernels[0], threads=256, shared_bytes=1024)
    assert dataclasses.replace(copy, registers=32).occupancy() == 1.0
    assert dataclasses.replace(copy, registers=33).occupancy() == 0.75  # 40 are allocated
    assert dataclasses.replace(copy, shared_bytes=100 << 10).occupancy() == 0.25
    assert kernels[1].occupancy() is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, ""),
        # Gradients may spill, and other generations need no budget.
        ({"name": "backward_kernel", "local_accesses": 2, "architecture": "sm_80"}, ""),
        ({"instructions": 8}, "8 instructions, above its budget of 7"),
        ({"types": "<double, 2>"}, "no budget. The kernel has 7 instructions"),
        ({"local_accesses": 2}, "2 loads and stores of local memory"),
        ({"registers": 65, "threads": 1024}, "65 registers are too many for a block of 1024 thr"),
        ({"registers": 65, "threads": None}, "65 registers .* .without __launch_bounds__"),
    ],
)
def test_checks(report, kernels, change, message):
    copy = dataclasses.replace(kernels[0], **change)
    errors = messages(report, [copy, *kernels[1:]] if message or not change else [copy])
    assert (
        bool(errors) == any(one.startswith("tiny: copy_kernel") for one in errors) == bool(message)
    )
    assert re.search(message, "\n".join(errors))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "// Budget: no_kernel 5 instructions.",
            "tiny.cu: has a budget for no_kernel, but no such kernel",
        ),
        ("// Budget: copy_kernel 5.", "tiny.cu: a budget must have the form"),
    ],
)
def test_invalid_budgets_are_reported(report, kernels, line, message):
    (error,) = messages(report, kernels, f"{BUDGETS}{line}\n")
    assert error.startswith(message)


def test_table_has_a_row_per_kernel(report, kernels):
    rows = report.table(kernels).splitlines()
    assert rows[2] == "| sm_90 | tiny | `copy_kernel<float, 1>` | 10 | 0 | 128 | 100% | 7 |"
    assert len(rows) == 4
