"""Reading a document in pieces gives what reading it at once gives, errors and all."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detlite.data.index.json_stream import NotAnObjectError, read_parts

STREAMED = ("images", "annotations")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(st.sampled_from(["info", *STREAMED]) | st.text(), VALUES)


def read(data, size):
    content = {}
    blocks = (data[start : start + size] for start in range(0, len(data), size))
    for key, value, text in read_parts(blocks, STREAMED):
        if text is None:
            content[key] = value
        else:
            assert repr(json.loads(text)) == repr(value)
            content[key].append(value)
    return content


@given(DOCUMENTS, st.sampled_from([None, 1]), st.booleans(), st.integers(4, 50))
def test_any_document_in_blocks_of_any_size(content, indent, ascii_only, size):
    data = json.dumps(content, indent=indent, ensure_ascii=ascii_only).encode()
    assert read(data, size) == content


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32-le"])
@pytest.mark.parametrize("size", [5, 1000])
def test_encodings_that_json_knows(encoding, size):
    content = {"images": [{"file_name": "é€\U0001f600.png"}]}
    assert read(json.dumps(content, ensure_ascii=False).encode(encoding), size) == content


def test_of_members_with_the_same_key_the_last_comes_last():
    text = b'{"images": [1], "images": [2, 3], "info": 1, "info": 2}'
    assert read(text, 7) == json.loads(text) == {"images": [2, 3], "info": 2}


def test_what_is_no_json_but_python_takes_it():
    assert read(b'{"images": [NaN, Infinity, "\\ud800"]}', 6)["images"][1:] == [
        float("inf"),
        "\ud800",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "", "{", '{"a"', '{"a":', '{"a":1,}', '{"a": [1,]}', '{"a":\n\n  tru}', '{"images": [1, 2',
        '{"images": [1,]}', '{"images": [1 \n 2]}', '{"images": ["un', '{"images": ["\n"]}', "{}x",
        '{"images": [{"a": 1} {"a": 2}]}', '{"images": ["' + "x" * 100 + '\\q"]}', '{"a" 1}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [4, 1000])
def test_errors_are_where_json_finds_them(text, size):
    with pytest.raises(ValueError, match="char") as wanted:
        json.loads(text)
    with pytest.raises(ValueError, match="char") as found:
        read(text.encode(), size)
    assert str(found.value).split(": ")[-1] == str(wanted.value).split(": ")[-1]


def test_a_fault_is_found_without_reading_on():
    def blocks():
        yield b'{"images": [{"id": 1}, {"id" 2}, ' + b" " * 100
        raise AssertionError("read on")

    with pytest.raises(ValueError, match=r"Expecting ':' delimiter: line 1 column 30"):
        list(read_parts(blocks(), STREAMED))


@pytest.mark.parametrize(("text", "kind"), [("[1, 2", "list"), ("12", "int"), ('"x"', "str")])
def test_what_is_no_object(text, kind):
    with pytest.raises(NotAnObjectError, match=kind):
        read(text.encode(), 100)


def test_depth_is_limited():
    with pytest.raises(RecursionError):
        read(b'{"images": ' + b"[" * 100_000, 1000)
