"""Almost valid exported models lead to a detector or a CheckpointError, and never run code."""

import io
import itertools
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from detlite import ConfigError, build_model
from detlite.apps.export.exported_detector import prepare_export, read_exported, write_exported
from detlite.apps.export.openvino import to_openvino
from detlite.errors import CheckpointError
from tests.fuzz.inputs import check_message, mutated, mutated_bytes

pytest.importorskip("openvino", reason="needs the extra openvino")
pytestmark = pytest.mark.slow

_numbers = itertools.count()
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


@pytest.fixture
def check(tmp_path: Path, bounded: Any) -> Callable[[bytes], None]:
    """Return a function that reads a file with this content."""

    def read(data: bytes) -> None:
        file = tmp_path / f"{next(_numbers)}.openvino"
        file.write_bytes(data)
        try:
            with bounded():
                _, model = read_exported(file)
            assert all(isinstance(one["name"], str) for one in model.categories)
        except (CheckpointError, ConfigError) as error:
            check_message(error)
        finally:
            file.unlink()

    return read


def with_member(data: bytes, name: str, change: Callable[[bytes], bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(buffer, "w") as target:
        for one in source.namelist():
            content = source.read(one)
            target.writestr(one, change(content) if one == name else content)
    return buffer.getvalue()


def test_unchanged_file_is_valid(valid, tmp_path):
    (tmp_path / "a.openvino").write_bytes(valid)
    assert len(read_exported(tmp_path / "a.openvino")[1].categories) == 3


@few
@given(data=st.data())
def test_bytes(data, valid, check):
    check(data.draw(mutated_bytes(valid)))


@few
@given(data=st.data(), member=st.sampled_from(["parts.json", "detlite.json"]))
def test_arrangements_and_metadata(data, member, valid, check):
    def change(content: bytes) -> bytes:
        return json.dumps(data.draw(mutated(json.loads(content)))).encode()

    check(with_member(valid, member, change))


@few
@given(data=st.data())
def test_configs(data, valid, check):
    def change(content: bytes) -> bytes:
        metadata = json.loads(content)
        changed = data.draw(mutated_bytes(metadata["config"].encode(), max_changes=2))
        return json.dumps(metadata | {"config": changed.decode(errors="replace")}).encode()

    check(with_member(valid, "detlite.json", change))


@few
@given(data=st.data(), part=st.sampled_from(["backbone.dense", "rpn.head"]))
def test_graphs(data, part, valid, check):
    check(with_member(valid, f"{part}.xml", lambda content: data.draw(mutated_bytes(content))))
