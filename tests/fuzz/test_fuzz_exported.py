"""Almost valid exported models lead to a detector or a CheckpointError, and never run code."""

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from detlite import build_model
from detlite.apps.export import limited_run
from detlite.apps.export.exported_detector import prepare_export, read_exported, write_exported
from detlite.apps.export.onnx import onnx_run
from detlite.apps.export.openvino import to_openvino
from tests.fuzz.inputs import mutated, mutated_bytes

pytest.importorskip("openvino", reason="needs the extra openvino")
pytestmark = pytest.mark.slow

few = settings(max_examples=settings.default.max_examples // 6)  # each compiles a graph


@pytest.fixture(scope="module")
def valid(tiny_config: Callable[..., Any], tmp_path_factory: Any) -> bytes:
    """Return the content of a file of the format openvino."""
    torch.manual_seed(0)
    cfg = tiny_config("INPUT.MIN_SIZE_TEST", 64)
    model = build_model(cfg).eval()
    model.categories = [{"id": 10 * k, "name": f"category {k}"} for k in (1, 2, 3)]
    file = tmp_path_factory.mktemp("exported") / "model.openvino"
    write_exported(file, "openvino", prepare_export(cfg, model), to_openvino(model))
    return file.read_bytes()


def read(file: Path) -> list[Any]:
    _, model = read_exported(file)
    assert all(isinstance(one["name"], str) for one in model.categories)
    return model.categories


def test_unchanged_file_is_valid(valid, tmp_path):
    (tmp_path / "a.openvino").write_bytes(valid)
    assert len(read(tmp_path / "a.openvino")) == 3


@few
@given(data=st.data())
@pytest.mark.parametrize(
    ("member", "key"),
    [
        ("", ""), ("detlite.json", ""), ("detlite.json", "config"),
        ("backbone.dense.xml", ""), ("rpn.head.xml", ""),
    ],
)  # fmt: skip
def test_changed_members(member, key, data, valid, check):
    """Change bytes of the file or of a graph, parts of its JSON, or bytes of a text in it."""

    def changed(content: bytes) -> bytes:
        if not member.endswith(".json"):
            return data.draw(mutated_bytes(content))
        parts = json.loads(content)
        if not key:
            return json.dumps(data.draw(mutated(parts))).encode()
        text = data.draw(mutated_bytes(parts[key].encode(), max_changes=2))
        return json.dumps(parts | {key: text.decode(errors="replace")}).encode()

    buffer = io.BytesIO(b"" if member else changed(valid))
    if member:
        with zipfile.ZipFile(io.BytesIO(valid)) as source, zipfile.ZipFile(buffer, "w") as target:
            for name in source.namelist():
                content = source.read(name)
                target.writestr(name, changed(content) if name == member else content)
    check(read, buffer.getvalue(), ".openvino")


# Operators of an ONNX graph: name, types of the inputs, type of the output, attributes.
_OPERATORS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("ConstantOfShape", "i", "f", {}), ("Expand", "fi", "f", {}), ("Tile", "fi", "f", {}),
    ("Reshape", "fi", "f", {}), ("Concat", "ff", "f", {"axis": 0}), ("Add", "ff", "f", {}),
    ("Concat", "ii", "i", {"axis": 0}), ("Mul", "ii", "i", {}), ("Shape", "f", "i", {}),
    ("Size", "f", "i", {}), ("Range", "iii", "i", {}), ("Cast", "i", "f", {"to": 1}),
    ("MatMul", "ff", "f", {}), ("NonZero", "f", "i", {}), ("Pad", "fi", "f", {}),
    ("Own", "f", "f", {}), ("RandomNormalLike", "f", "f", {}), ("Unknown", "f", "f", {}),
]  # fmt: skip
_NODES = st.tuples(st.sampled_from(_OPERATORS), st.lists(st.integers(0, 9), min_size=3, max_size=3))


@few
@given(
    nodes=st.lists(_NODES, min_size=1, max_size=12),
    numbers=st.lists(
        st.lists(st.sampled_from([0, 1, 2, -1, 1000, 2**31, 2**40, 2**62]), max_size=3),
        min_size=1, max_size=3,
    ),
    calls=st.integers(0, 2),
)  # fmt: skip
@example(nodes=[(_OPERATORS[0], [0, 0, 0])], numbers=[[2**31]], calls=0)
@example(nodes=[(_OPERATORS[0], [0, 0, 0])], numbers=[[2]], calls=0)
def test_onnx_graphs(nodes, numbers, calls, check, monkeypatch):
    """A graph with large constants ends in an error; `calls`: of a function by itself."""
    helper = pytest.importorskip("onnx", reason="needs the extra onnx").helper
    monkeypatch.setattr(limited_run, "_MEMORY", 700_000_000)  # below the limit of `bounded`
    names = {"f": ["pixels"], "i": [f"number{n}" for n in range(len(numbers))]}
    made = []
    for count, ((operator, kinds, output, attributes), choices) in enumerate(nodes):
        inputs = [names[k][c % len(names[k])] for k, c in zip(kinds, choices, strict=False)]
        domain = "own" if operator == "Own" else ""
        name = f"out{count}"
        made.append(helper.make_node(operator, inputs, [name], domain=domain, **attributes))
        names[output].append(name)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    body = [helper.make_node("Own", ["a"], ["b"], domain="own")] * calls
    function = helper.make_function("own", "Own", ["a"], ["b"], body, opsets)
    constants = [
        helper.make_tensor(name, 7, [len(values)], values)
        for name, values in zip(names["i"], numbers, strict=False)
    ]
    ends = [helper.make_tensor_value_info(n, 1, None) for n in ("pixels", names["f"][-1])]
    graph = helper.make_graph(made, "graph", ends[:1], ends[1:], constants)
    functions = [function] if calls else []
    file = helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=functions)
    helper.set_model_props(file, {"detlite": "{}"})
    check(lambda path: onnx_run(path)[1](torch.zeros(4)), file.SerializeToString(), ".onnx")
