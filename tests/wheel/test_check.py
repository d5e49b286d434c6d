"""Tests of the wheel check: it finds the problems of a wheel."""

import os
import re
import runpy
import zipfile
from pathlib import Path

import pytest

from detlite.ops.kernels import OLDEST_TORCH

CHECK = runpy.run_path(str(Path(__file__).with_name("check.py")))
NAME = "detlite-0.1.0-cp310-abi3-manylinux_2_28_x86_64.whl"
FILES = {
    "detlite/__init__.py": b"",
    "detlite/_C.abi3.so": b"\x00csrc/nms.cpp\x00",
    "detlite/configs/a/b.yaml": b"SEED: 1",
    "detlite-0.1.0.dist-info/licenses/LICENSE": b"MIT",
}


@pytest.fixture
def problems(tmp_path):
    """`problems(name, changes)`: problems of a wheel with changed files; None removes a file."""
    for name, content in FILES.items():
        path = tmp_path / name.replace("detlite/configs", "configs")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def make(name=NAME, changes=None):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for file, content in {**FILES, **(changes or {})}.items():
                if content is not None:
                    archive.writestr(file, content)
        return CHECK["contents"](tmp_path / name, tmp_path)

    return make


@pytest.mark.parametrize(
    ("tag", "extension"),
    [
        ("cp310-abi3-manylinux_2_28_aarch64", "detlite/_C.abi3.so"),
        ("cp310-abi3-macosx_14_0_arm64", "detlite/_C.abi3.so"),
        ("cp310-abi3-win_amd64", "detlite/_C.pyd"),
        ("py3-none-any", None),
    ],
)
def test_valid_wheels(problems, tag, extension):
    changes = {"detlite/_C.abi3.so": None} | ({extension: b""} if extension else {})
    assert problems(f"detlite-0.1.0-{tag}.whl", changes) == []


@pytest.mark.parametrize("tag", ["cp311-cp311-manylinux_2_28_x86_64", "cp310-abi3-linux_x86_64"])
def test_wheels_for_one_python_or_one_machine(tag, problems):
    problem, *_ = problems(f"detlite-0.1.0-{tag}.whl")
    assert problem == f"the name detlite-0.1.0-{tag}.whl does not say that it is for every Python"


@pytest.mark.parametrize("name", FILES)
def test_missing_files(name, problems):
    [problem] = problems(changes={name: None})
    assert problem == f"{name.rpartition('licenses/')[2]} is missing"


@pytest.mark.parametrize(
    "name",
    ["tests/test_a.py", "benchmarks/data/loading.py", "detlite/b.py", "detlite.libs/libc10.so"],
)
def test_unexpected_files(name, problems):
    assert problems(changes={name: b""}) == [f"{name} is unexpected"]


@pytest.mark.parametrize("path", ["/home/a/csrc/nms.cpp", "/tmp/b/csrc/nms.cpp"])
def test_paths_of_the_building_machine(path, problems):
    [problem] = problems(changes={"detlite/_C.abi3.so": b"\x00" + os.fsencode(path) + b"\x00"})
    assert problem == f"detlite/_C.abi3.so contains {path}, a path of this machine"


def test_path_of_the_sources(problems, tmp_path):
    [problem] = problems(changes={"detlite/__init__.py": f"FOLDER = '{tmp_path}'".encode()})
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
