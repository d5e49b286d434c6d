"""Almost valid checkpoints lead to weights or a CheckpointError, and never run code."""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from detlite.checkpoint.contents import Checkpoint
from detlite.checkpoint.files import read_checkpoint
from detlite.engine.checkpointer import newest_checkpoint
from tests.fuzz.inputs import mutated, mutated_bytes, unexpected_values

WEIGHTS = {
    "backbone.body.conv1.weight": torch.ones(2, 3, 3, 3),
    "roi_heads.box.predictor.cls_score.weight": torch.zeros(4, 8),
    "roi_heads.box.predictor.cls_score.bias": torch.zeros(4),
}
VALID: dict[str, Any] = {
    "model": WEIGHTS,
    "categories": [{"id": 7, "name": "red"}, {"id": 9, "name": "green"}],
    "config": "SEED: 3\n",
    "convention": "detlite",
    "override": ["resize=floor"],
    "backbone_only": False,
    "training": {"iteration": 3, "optimizer": {"state": {}}, "rng": [{"torch": torch.zeros(4)}]},
}
SQUARE, STEM = np.ones((2, 2, 1, 1), np.float32), torch.ones(2, 3, 7, 7)
# Checkpoints of frameworks that can be converted.
OTHER_FRAMEWORKS: list[dict[str, Any]] = [
    {"model": {"backbone.body.layer1.0.conv1.weight": torch.ones(2, 2, 1, 1),
               "rpn.head.conv.weight": torch.ones(2, 2, 3, 3)}},
    {"model": {"backbone.bottom_up.res2.0.conv1.weight": SQUARE,
               "proposal_generator.rpn_head.conv.weight": SQUARE},
     "__author__": "Detectron2 Model Zoo", "matching_heuristics": True},
    {"blobs": {"res2_0_branch2a_w": SQUARE, "conv1_w": STEM.numpy(), "conv1_b": np.ones(2)},
     "cfg": "MODEL: {}"},
    {"module.roi_heads.box_predictor.cls_score.weight": torch.ones(4, 8),
     "backbone.body.conv1.weight": STEM},
    {"conv1.weight": STEM, "layer1.0.conv1.weight": torch.ones(2, 2, 1, 1),
     "fc.weight": torch.ones(5, 2)},
]  # fmt: skip
VALUES = unexpected_values() | st.sampled_from(
    [
        torch.zeros(0), torch.zeros(3).int(), torch.tensor(float("nan")), torch.zeros(2, 2).bool(),
        torch.zeros(2, device="meta"), torch.zeros(3).to_sparse(), torch.zeros(2, 3).t(),
        np.zeros(3), np.array("a"), np.float32(1), torch.zeros(1).expand(10**6, 10**6),
    ]
)  # fmt: skip
OTHERS = st.sampled_from(OTHER_FRAMEWORKS).flatmap(lambda one: mutated(one, values=VALUES))


def saved(content: Any, form: str = "zip") -> bytes:
    if form == "pickle":
        return pickle.dumps(content, protocol=2)
    stream = io.BytesIO()
    torch.save(content, stream, _use_new_zipfile_serialization=form == "zip")
    return stream.getvalue()


def zipped(members: list[tuple[str, bytes]]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        for name, content in members:
            file.writestr(name, content)
    return stream.getvalue()


def read(file: Path) -> None:
    checkpoint = read_checkpoint(file)
    assert isinstance(checkpoint, Checkpoint)
    for name, value in checkpoint.model.items():
        assert isinstance(name, str)
        assert isinstance(value, torch.Tensor)
    assert all(isinstance(row["name"], str) for row in checkpoint.categories)


@given(
    content=mutated(VALID, values=VALUES) | OTHERS | VALUES,
    form=st.sampled_from(["zip", "old", "pickle"]),
)
@example(content=torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), form="zip")
@example(content={"blobs": {"conv1_b": np.array("a"), "conv1_w": np.ones(2)}}, form="pickle")
def test_saved_contents(content, form, check):
    try:
        data = saved(content, form)
    except Exception:  # what cannot be pickled, such as a sparse tensor
        return
    check(read, data, ".pkl" if form == "pickle" else ".pth")


@given(width=st.integers(1, 60), depth=st.integers(0, 8), dots=st.integers(0, 2000))
@example(width=60, depth=8, dots=0)
@example(width=1, depth=0, dots=50_000)
def test_shared_containers(width, depth, dots, check):
    """A small file may have `width` ** `depth` paths to a tensor, and names of many parts."""
    content: Any = {"a." * dots + "weight": torch.zeros(2)}
    for _ in range(depth):
        content = {str(n): content for n in range(width)}
    check(read, saved({"model": content}), ".pth")


# A tensor with 2**28 values, which are one of a storage.
_REPEATED = (
    b"ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\n"
    b"X\1\0\0\x000X\3\0\0\0cpuK\x04tQK\0J\0\0\0\x10\x85K\0\x85\x89}tR"
)
# Parts of a pickle: numbers, containers, references, and every object that checkpoints may have.
_OPERATIONS = [
    b"K\x01", b"J\xff\xff\xff\xff", b"N", b"\x88", b"X\x01\0\0\0a", b"C\x02ab", b"(", b")", b"]",
    b"}", b"\x8f", b"\x85", b"\x86", b"\x87", b"t", b"a", b"e", b"s", b"u", b"\x90", b"\x91",
    b"0", b"2", b"1", b"q\0", b"q\x01", b"h\0", b"h\x01", b"\x94", b"R", b"b", b"\x81", b"\x92",
    b"o", b"Q", b".", _REPEATED,
    *(
        f"c{module}\n{name}\n".encode()
        for module, name in [
            ("collections", "OrderedDict"), ("_codecs", "encode"), ("numpy", "dtype"),
            ("numpy", "ndarray"), ("numpy._core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "scalar"), ("numpy._core.numeric", "_frombuffer"),
            ("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_parameter"),
            ("torch", "FloatStorage"), ("torch", "Size"), ("my.module", "Settings"),
        ]
    ),
]  # fmt: skip


@given(parts=st.lists(st.sampled_from(_OPERATIONS), max_size=40), in_zip=st.booleans())
@example(parts=[b"ctorch\nSize\n", _REPEATED, b"R"], in_zip=True)
@example(parts=[_REPEATED, b"(", b"K\x01", b"\x90"], in_zip=True)
def test_pickles_of_any_operations(parts, in_zip, check):
    data = b"\x80\x02" + b"".join(parts) + b"."
    if in_zip:
        data = zipped([("a/data.pkl", data), ("a/data/0", bytes(16))])
    check(read, data, ".pth" if in_zip else ".pkl")


FILES = [saved(VALID), saved(VALID, "old"), saved(OTHER_FRAMEWORKS[2], "pickle")]


@given(
    data=st.sampled_from(FILES).flatmap(mutated_bytes) | st.binary(max_size=100),
    suffix=st.sampled_from([".pth", ".pkl", ".safetensors"]),
)
@example(data=b"cos\nsystem\n(S'exit 1'\ntR.", suffix=".pkl")
@example(data=b"\x80\x02}r" + (2**28).to_bytes(4, "little") + b".", suffix=".pkl")
@example(data=(2**62).to_bytes(8, "little") + b"{}", suffix=".safetensors")
def test_bytes(data, suffix, check):
    check(read, data, suffix)


@given(parts=mutated([["archive/data.pkl", "x"], ["archive/version", "3"], ["a", "b"]]))
def test_zip_files(parts, check):
    """Valid checksums, but invalid names and contents of the records."""
    try:
        data = zipped([(name, content.encode("latin1", "replace")) for name, content in parts])
    except (ValueError, TypeError, AttributeError, IndexError):  # not records
        return
    check(read, data, ".pth")


@given(data=mutated_bytes(FILES[0]), note=st.binary(max_size=40))
@example(data=b"", note=b"model_0000003.pth")
@example(data=b"", note=b"/" * 5000)
def test_folder_of_a_run(data, note, tmp_path, bounded):
    (tmp_path / "model_0000003.pth").write_bytes(data)
    (tmp_path / "last_checkpoint").write_bytes(note)
    with bounded():
        newest_checkpoint(tmp_path)
