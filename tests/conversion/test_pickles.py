"""Pickles of arrays are read; whatever else a pickle asks for is refused by name."""

from __future__ import annotations

import argparse
import collections
import os
import pickle

import numpy as np
import pytest

from detlite.conversion import RefusedPickleError, read_pickle
from detlite.engine.checkpoint import CheckpointError, read_checkpoint


class RunsCode:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def write(path, content, protocol=2):
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_and_containers(tmp_path, protocol):
    content = {
        "model": collections.OrderedDict(
            a=np.arange(6, dtype=np.float32).reshape(2, 3), b=np.float32(1.5), c=np.array(3)
        ),
        "rest": [1, 2.5, None, True, "text", (b"\x80bytes",)],
    }
    read = read_pickle(write(tmp_path / "w.pkl", content, protocol))
    assert read["rest"] == content["rest"]
    for name, value in content["model"].items():
        np.testing.assert_array_equal(read["model"][name], value)
        assert read["model"][name].dtype == value.dtype


def test_names_of_numpy_1(tmp_path):
    old = pickle.dumps(np.ones(2), protocol=2).replace(b"numpy._core", b"numpy.core")
    (tmp_path / "w.pkl").write_bytes(old)
    np.testing.assert_array_equal(read_pickle(tmp_path / "w.pkl"), np.ones(2))


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (argparse.Namespace(), r"argparse\.Namespace"),
        (np.load, r"numpy\.load"),
        (eval, r"__builtin__\.eval"),
        ([np.array([print], dtype=object)], r"__builtin__\.print"),
    ],
)
def test_objects_are_refused_by_name(tmp_path, content, name):
    with pytest.raises(RefusedPickleError, match=name):
        read_pickle(write(tmp_path / "w.pkl", content))


def test_nothing_runs(tmp_path):
    path = write(tmp_path / "evil.pkl", {"model": RunsCode(tmp_path / "ran")})
    with pytest.raises(CheckpointError, match=r"evil\.pkl: holds a pickled posix\.mkdir"):
        read_checkpoint(path)
    assert not (tmp_path / "ran").exists()


def test_other_codecs_are_refused(tmp_path):
    (tmp_path / "w.pkl").write_bytes(b"c_codecs\nencode\n(Vtext\nVrot13\ntR.")
    with pytest.raises(RefusedPickleError, match="rot13"):
        read_pickle(tmp_path / "w.pkl")


@pytest.mark.parametrize("data", [b"", b"\x80", b"no pickle", pickle.dumps({"a": 1})[:-3]])
def test_damaged_pickles(tmp_path, data):
    (tmp_path / "w.pkl").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"w\.pkl: is not a checkpoint"):
        read_checkpoint(tmp_path / "w.pkl")


def test_missing_pickle(tmp_path):
    with pytest.raises(CheckpointError, match=r"none\.pkl: cannot be read"):
        read_checkpoint(tmp_path / "none.pkl")
