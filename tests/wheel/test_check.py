"""Tests of the wheel check: it finds the problems of a wheel."""

import os
import re
import runpy
import zipfile
from pathlib import Path

import pytest

from detlite.ops.kernels import OLDEST_TORCH

CHECK = runpy.run_path(str(Path(__file__).with_name("check.py")))
SO, LINUX = "detlite/_C.abi3.so", "cp310-abi3-manylinux_2_28_x86_64"
FILES = {
    "detlite/__init__.py": b"",
    SO: b"\x00csrc/nms.cpp\x00",
    "detlite/configs/a/b.yaml": b"SEED: 1",
    "detlite-0.1.0.dist-info/licenses/LICENSE": b"MIT",
}
# Tags, changed files (None removes one), and problems.
CASES = [
    ("cp310-abi3-manylinux_2_28_aarch64", {}, []),
    ("cp310-abi3-macosx_14_0_arm64", {}, []),
    ("cp310-abi3-win_amd64", {SO: None, "detlite/_C.pyd": b""}, []),
    ("py3-none-any", {SO: None}, []),
    *(
        (tag, {}, [f"the name detlite-0.1.0-{tag}.whl does not say that it is for every Python",
                   f"{SO} is unexpected"])
        for tag in ("cp311-cp311-manylinux_2_28_x86_64", "cp310-abi3-linux_x86_64")
    ),
    *((LINUX, {name: None}, [f"{name.rpartition('licenses/')[2]} is missing"]) for name in FILES),
    *(
        (LINUX, {name: b""}, [f"{name} is unexpected"])
        for name in ("tests/a.py", "benchmarks/a.py", "detlite/b.py", "detlite.libs/libc10.so")
    ),
    *(
        (LINUX, {SO: b"\x00" + os.fsencode(path) + b"\x00"},
         [f"{SO} contains {path}, a path of this machine"])
        for path in ("/home/a/csrc/nms.cpp", "/tmp/b/csrc/nms.cpp")
    ),
]  # fmt: skip


@pytest.fixture
def problems(tmp_path):
    """`problems(tag, changes)`: problems of a wheel with changed files; None removes a file."""
    for name, content in FILES.items():
        path = tmp_path / name.replace("detlite/configs", "configs")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def make(tag, changes):
        wheel = tmp_path / f"detlite-0.1.0-{tag}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for file, content in (FILES | changes).items():
                if content is not None:
                    archive.writestr(file, content)
        return CHECK["contents"](wheel, tmp_path)

    return make


@pytest.mark.parametrize(("tag", "changes", "expected"), CASES)
def test_problems_of_wheels(problems, tag, changes, expected):
    assert problems(tag, changes) == expected


def test_path_of_the_sources(problems, tmp_path):
    [problem] = problems(LINUX, {"detlite/__init__.py": f"FOLDER = '{tmp_path}'".encode()})
    assert problem == f"detlite/__init__.py contains {tmp_path}, a path of this machine"


def test_missing_pythons():
    assert CHECK["version_of"]("python3.999") is None
    assert CHECK["default_pythons"]()[0] == "python3.10"
    assert CHECK["try_out"](Path("a.whl"), ["python3.999"], ["torch"]) == [
        "none of python3.999 is installed"
    ]


def test_oldest_versions_match_the_package(repo_root):
    oldest = re.search(
        r'requires-python = ">=(\d+)\.(\d+)"', (repo_root / "pyproject.toml").read_text()
    )
    assert tuple(map(int, oldest.groups())) == CHECK["OLDEST_PYTHON"]
    assert f"torch=={OLDEST_TORCH[0]}.{OLDEST_TORCH[1]}.* " in CHECK["TORCH_VERSIONS"][0]
