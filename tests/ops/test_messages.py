"""Error messages of the operators."""

import shutil
import subprocess
import sys

import pytest
from torch.utils.cpp_extension import include_paths, library_paths

SOURCE = """
#include "common/tensors.h"

extern "C" __attribute__((visibility("default"))) void message(char* text, int size) {
  try {
    detlite::check(false, "op: ", int64_t{-3}, " of ", 0.25);
  } catch (const std::exception& error) {
    std::snprintf(text, size, "%s", error.what());
  }
}
"""
PROGRAM = """
import ctypes, sys, torch
text = ctypes.create_string_buffer(99)
ctypes.CDLL(sys.argv[1]).message(text, len(text))
print(text.value.decode())
"""


@pytest.mark.slow  # compiles torch's headers
@pytest.mark.skipif(sys.platform != "linux", reason="links libstdc++")
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_numbers_with_a_statically_linked_standard_library(repo_root, tmp_path):
    # As on machines where the compiler finds no shared libstdc++.
    source, library = tmp_path / "message.cpp", tmp_path / "message.so"
    source.write_text(SOURCE)
    options = ["-std=c++17", "-fPIC", "-fvisibility=hidden", "-shared", "-static-libstdc++"]
    folders = [word for path in include_paths() for word in ("-isystem", path)]
    headers = ["-I", str(repo_root / "csrc"), *folders]
    libraries = [*(f"-L{path}" for path in library_paths()), "-ltorch_cpu"]
    command = ["c++", *options, *headers, str(source), "-o", str(library), *libraries]
    compiled = subprocess.run(command, capture_output=True, text=True)
    if "cannot find -lstdc++" in compiled.stderr:
        pytest.skip("needs the static libstdc++")
    assert compiled.returncode == 0, compiled.stderr
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(library)], capture_output=True, text=True
    )
    assert result.stdout == "op: -3 of 0.25\n", result.stderr
