"""The check of wheels notices what is wrong with one."""

from __future__ import annotations

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
    """`problems(name, **changed)`: of a wheel with files added, or left out where None."""
    for name, content in FILES.items():
        path = tmp_path / name.replace("detlite/configs", "configs")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def make(name=NAME, changed=None):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for file, content in {**FILES, **(changed or {})}.items():
                if content is not None:
                    archive.writestr(file, content)
        return CHECK["contents"](tmp_path / name, tmp_path)

    return make


def test_a_sound_wheel(problems):
    assert problems() == []


@pytest.mark.parametrize("tag", ["cp311-cp311-manylinux_2_28_x86_64", "cp310-abi3-linux_x86_64"])
def test_tags(tag, problems):
    [problem] = problems(f"detlite-0.1.0-{tag}.whl")
    assert "is not of one wheel for every Python" in problem


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_missing(name, problems):
    [problem] = problems(changed={name: None})
    assert problem == f"{name.rpartition('licenses/')[2]} is missing"


@pytest.mark.parametrize("name", ["tests/test_a.py", "detlite/b.py", "detlite.libs/libc10.so"])
def test_files_that_do_not_belong_in_it(name, problems):
    assert problems(changed={name: b""}) == [f"{name} does not belong in it"]


@pytest.mark.parametrize("path", ["/home/a/csrc/nms.cpp", "/tmp/b/csrc/nms.cpp"])
def test_paths_of_the_machine(path, problems):
    [problem] = problems(changed={"detlite/_C.abi3.so": b"\x00" + os.fsencode(path) + b"\x00"})
    assert problem == f"detlite/_C.abi3.so names {path}, a path of this machine"


def test_the_folder_of_the_sources(problems, tmp_path):
    [problem] = problems(changed={"detlite/__init__.py": f"FOLDER = '{tmp_path}'".encode()})
    assert problem == f"detlite/__init__.py names {tmp_path}, a path of this machine"


def test_pythons_that_are_not_there():
    assert CHECK["version_of"]("python3.999") is None
    assert CHECK["pythons"]()[0] == "python3.10"


def test_the_oldest_versions_are_those_of_the_package(repo_root):
    oldest = re.search(
        r'requires-python = ">=(\d+)\.(\d+)"', (repo_root / "pyproject.toml").read_text()
    )
    assert tuple(map(int, oldest.groups())) == CHECK["OLDEST_PYTHON"]
    assert f"torch=={OLDEST_TORCH[0]}.{OLDEST_TORCH[1]}.* " in CHECK["TORCHES"][0]
