"""Pickles of arrays are read, and everything else is refused by name."""

import argparse
import collections
import pickle
import zipfile
from itertools import product

import numpy as np
import pytest
import torch

from detlite.checkpoint.files import read_checkpoint
from detlite.errors import CheckpointError
from detlite.files.errors import RefusedPickleError
from detlite.files.safe_pickle import read_pickle


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


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(np.float32([1, 2]), protocol=2).replace(b"numpy._core", b"numpy.core"),
        # Python 2 stores bytes as text.
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
        b"(I1\n(I2\ntcnumpy\ndtype\n(S'f4'\nI0\nI1\ntR(I3\nS'>'\nNNNI-1\nI-1\nI0\ntb"
        b"I00\nS'?\\x80\\x00\\x00@\\x00\\x00\\x00'\ntb.",
    ],
    ids=["numpy 1", "Python 2"],
)
def test_old_pickles(tmp_path, data):
    (tmp_path / "w.pkl").write_bytes(data)
    np.testing.assert_array_equal(read_pickle(tmp_path / "w.pkl"), np.float32([1, 2]))


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (argparse.Namespace(), r"argparse\.Namespace"),
        (np.load, r"numpy\.load"),
        (eval, r"builtins\.eval"),
        ([np.array([print], dtype=object)], r"numpy\.dtype of 'O8'"),
        (np.zeros(1, dtype=[("a", "O")]), r"numpy\.dtype of 'V8'"),
        (np.dtype("O"), r"numpy\.dtype of 'O8'"),
        ({1, 2}, "set"),
    ],
)
def test_objects_are_refused_by_name(tmp_path, content, name):
    with pytest.raises(RefusedPickleError, match=name):
        read_pickle(write(tmp_path / "w.pkl", content, 4))
    if name not in (r"argparse\.Namespace", "set"):  # settings, which become empty dicts
        torch.save({"tensor": torch.ones(1), "x": content}, tmp_path / "w.pth")
        with pytest.raises(RefusedPickleError, match=name):
            read_pickle(tmp_path / "w.pth")


class Calls:
    """Pickled as a call of an allowed function with forged arguments."""

    def __init__(self, function, *arguments, state=None):
        self.parts = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.parts


FORGED = b"\x41" * 8  # as a pointer


@pytest.mark.parametrize(
    "content",
    [
        # numpy would use the bytes as the address of an object
        Calls(np.ndarray, (1,), np.dtype("f8"), FORGED),
        Calls(np.dtype, "f4", False, True, state=(3, "<", (np.dtype("f8"), (9,)), None, None)),
        Calls(np.dtype, "f4", False, True, state=(3, "<", None, ("a",), {"a": 1}, 8, 1, 0)),
        Calls(np._core.numeric._frombuffer, FORGED, "O", (1,), "C"),
        Calls(np._core.multiarray.scalar, "O", FORGED),
        Calls(np._core.multiarray._reconstruct, np.ndarray, (0,), b"b",
              state=(1, (1,), "O", False, FORGED)),
        Calls(np._core.multiarray._reconstruct, np.ndarray, (0,), b"b",
              state=(1, (100,), np.dtype("f8"), False, FORGED)),
        Calls(np._core.multiarray._reconstruct, np.ndarray, (0,), b"b",
              state=(1, (-1,), np.dtype("f8"), False, FORGED)),
        Calls(np._core.numeric._frombuffer, FORGED, np.dtype("f8"), (100,), "C"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("protocol", [2, 5])
def test_forged_arrays_are_refused(tmp_path, content, protocol):
    with pytest.raises((RefusedPickleError, TypeError, ValueError)):
        read_pickle(write(tmp_path / "w.pkl", content, protocol))


def test_allowed_objects_cannot_be_changed(tmp_path):
    # BUILD sets attributes of the last object from the second part of the state
    for name in (b"numpy\ndtype", b"numpy\nndarray", b"collections\nOrderedDict",
                 b"numpy._core.multiarray\nscalar"):  # fmt: skip
        forged = b"c" + name + b"\n(N(dVfromkeys\nVtext\nstb."
        (tmp_path / "w.pkl").write_bytes(forged)
        with pytest.raises(RefusedPickleError):
            read_pickle(tmp_path / "w.pkl")
    assert collections.OrderedDict.fromkeys([1]) == {1: None}


@pytest.mark.parametrize("protocol", [2, 5])
def test_arrays_of_all_dtypes(tmp_path, protocol):
    for dtype, order in product(("?", "i2", ">f8", "c8", "S3", "<U4"), "CF"):
        array = np.asarray(np.arange(6).reshape(2, 3).astype(dtype), order=order)
        read = read_pickle(write(tmp_path / "w.pkl", array, protocol))
        np.testing.assert_array_equal(read, array)
        assert read.dtype == array.dtype.newbyteorder("=")


@pytest.mark.parametrize("data", [b"\x80", b"no pickle", pickle.dumps({"a": 1})[:-3]])
def test_damaged_pickles(tmp_path, data):
    (tmp_path / "w.pkl").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"w\.pkl: is not a checkpoint"):
        read_checkpoint(tmp_path / "w.pkl")


def two_states(array):
    """Return a pickle that fills one array twice, which frees the memory of its first state."""
    text = pickle.dumps(array, protocol=2)
    build = text.rindex(b"b")
    start = text.rindex(b"(K\x01", 0, build)
    return text[:build] + b"b" + text[start:build] + b"b" + text[build + 1 :]


# A tuple of the same tuple twice, 60 levels deep: its text and its hash take 2 ** 60 steps.
NESTED = b"I1\n\x85" + b"".join(b"q%ch%c\x86" % (k, k) for k in range(60))


@pytest.mark.parametrize("suffix", [".pkl", ".pth", "-old.pth"])
@pytest.mark.parametrize(
    ("pickled", "message"),
    [
        (b"\x80\x02}" + NESTED + b"I1\ns.", "key of type tuple"),
        (two_states(np.zeros(4, np.float32)), "array with two states"),
        (b"\x80\x02}(" + b"K\x01" * 65 + b"tI1\ns.", "key of type tuple"),
        (b"\x80\x02}" + pickle.dumps(1 << 4000, 2)[2:-1] + b"I1\ns.", "key of type int"),
        (b"\x80\x02ctorch\nSize\n(" + b"K\x01" * 65 + b"t\x85R.", "torch.Size of no short"),
        (b"\x80\x02(" + NESTED + b"I1\nd.", "key of type tuple"),
        (b"\x80\x02cnumpy\ndtype\n" + NESTED + b"\x85R.", "numpy.dtype of tuple"),
        (b"\x80\x02c_codecs\nencode\nVa\n" + NESTED + b"\x86R.", "_codecs.encode to tuple"),
        (b"\x80\x02]q\x00(" + b"h\x00" * 10 + b"e}b.", "state of list"),
        (b"\x80\x02cbuiltins\nbytearray\nI1000000000\n\x85R.", "(bytearray|not a)"),
        (b"\x80\x02]q\x00c_codecs\nencode\nq\x01X" + (1 << 20).to_bytes(4, "little")
         + b"a" * (1 << 20) + b"q\x020(" + b"h\x01h\x02\x85R" * 40 + b"e.", "until it fills"),
        (b"\x80\x02ctorch._utils\n_rebuild_device_tensor_from_numpy\n.", "_from_numpy"),
        (b"\x80\x02ctorch\nSize\n]R.", "or with other arguments"),
        (b"\x80\x02N)R.", "call of an object"),
        (b"\x80\x02](I1\n\x90.", "set or object of another class"),
        (b"\x80\x02N)}\x92.", "set or object of another class"),
        (b"\x80\x02}(" + b"".join(b"I%d\n\x85N" % k for k in range(5000)) + b"u.", "4096 keys"),
        (b"\x80\x02ccollections\nOrderedDict\nq\x00" + b"h\x00)R0" * (1 << 20) + b"N.",
         "more than 16777216 operations"),
    ],
    ids=["nested keys", "two states", "long key", "large key", "long size", "key of d", "dtype",
         "codec", "state of a list", "bytearray", "repeated", "numpy tensor",
         "call with a list", "call of None", "items of a set", "class", "unusual keys", "calls"],
)  # fmt: skip
def test_hostile_pickles_are_refused_at_once(tmp_path, suffix, pickled, message):
    path = tmp_path / f"w{suffix}"
    if suffix == ".pth":
        torch.save({}, path)
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, pickled if name.endswith("data.pkl") else b"little")
    else:
        start = b""
        if suffix == "-old.pth":
            torch.save({}, path, _use_new_zipfile_serialization=False)
            start = path.read_bytes()[: -len(pickle.dumps({}, 2)) - len(pickle.dumps([], 2))]
        path.write_bytes(start + pickled)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(path)


def test_attributes_of_objects_are_ignored(tmp_path):
    """State dicts of torch have the attribute `_metadata`; others would hide methods."""
    shadowed = b"\x80\x02ccollections\nOrderedDict\n)RVa\nI1\ns}Vitems\nI1\nsb."
    (tmp_path / "w.pkl").write_bytes(shadowed)
    assert dict(read_pickle(tmp_path / "w.pkl").items()) == {"a": 1}
    torch.save(torch.nn.Linear(2, 2).state_dict(), tmp_path / "w.pth")
    assert [*read_pickle(tmp_path / "w.pth")] == ["weight", "bias"]


@pytest.mark.parametrize("old", [True, False])
def test_all_dense_tensors_are_read(tmp_path, old):
    values = torch.arange(-6, 18).reshape(4, 6)
    content = {
        str(dtype): values.to(dtype)
        for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8,
                      torch.bool, torch.int64, torch.complex64, torch.uint16, torch.float8_e5m2)
    }  # fmt: skip
    content |= {
        "transposed": values.t(), "part": values[1:3, ::2], "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3), "parameter": torch.nn.Parameter(torch.ones(2)),
        "size": values.shape, "dtype": torch.float16, "number": np.int64(3),
        "array": np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::2], "none": np.zeros((0, 3)),
    }  # fmt: skip
    content["parameter"].no_decay = content["part"].is_part = True
    content["shared"] = content["parameter"].data
    torch.save(content, tmp_path / "w.pth", _use_new_zipfile_serialization=not old)
    read = read_pickle(tmp_path / "w.pth")
    assert read.keys() == content.keys()
    for name, value in content.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(read[name], value)
        elif isinstance(value, torch.Tensor):
            assert read[name].dtype == value.dtype
            assert read[name].stride() == value.stride()
            assert torch.equal(read[name].double(), value.detach().double()) or value.is_complex()
        else:
            assert read[name] == value
    read["parameter"].zero_()
    assert read["shared"].tolist() == [0, 0]


@pytest.mark.parametrize(
    "model", [{"a": [[1.0, 2.0], [3.0, 4.0]]}, {1: torch.ones(2)}, {None: torch.ones(2)}]
)
def test_state_dicts_have_names_and_arrays(tmp_path, model):
    """Nested lists could refer to each other: a short file would be a huge tensor."""
    torch.save({"model": model, "categories": [], "convention": ""}, tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match="is neither a tensor nor an array"):
        read_checkpoint(tmp_path / "w.pth")


def test_arrays_from_the_same_bytes_are_separate(tmp_path):
    data = np.ones(1 << 16, np.float32)  # numpy copies small ones anyway
    state = (1, data.shape, data.dtype, False, data.tobytes())
    array = [Calls(np._core.multiarray._reconstruct, np.ndarray, (0,), b"b", state=state)
             for _ in range(2)]  # fmt: skip
    model = read_checkpoint(write(tmp_path / "w.pkl", dict(zip("ab", array, strict=True)), 3)).model
    model["a"].zero_()
    assert model["b"].all()


def test_old_files_without_values(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "w.pth", _use_new_zipfile_serialization=False)
    text = (tmp_path / "w.pth").read_bytes()
    end = text.rindex(b"\x80\x02]")
    (tmp_path / "w.pth").write_bytes(text[:end] + pickle.dumps([], 2))
    with pytest.raises(CheckpointError, match="truncated or damaged"):
        read_checkpoint(tmp_path / "w.pth")
