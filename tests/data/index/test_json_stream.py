"""Streamed reading has the same values and errors as `json.loads`."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detlite.data.index.json_stream import NotAnObjectError, read_members

STREAMED = ("images", "annotations")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(st.sampled_from(["info", *STREAMED]) | st.text(), VALUES)


def read_in_blocks(data, size):
    content = {}
    blocks = (data[start : start + size] for start in range(0, len(data), size))
    for key, value, text in read_members(blocks, STREAMED):
        if text is None:
            content[key] = value
        else:
            assert repr(json.loads(text)) == repr(value)
            content[key].append(value)
    return content


@given(DOCUMENTS, st.sampled_from([None, 1]), st.booleans(), st.integers(4, 50))
@pytest.mark.slow
def test_any_document_in_blocks_of_any_size(content, indent, ascii_only, size):
    data = json.dumps(content, indent=indent, ensure_ascii=ascii_only).encode()
    assert read_in_blocks(data, size) == content


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32-le"])
@pytest.mark.parametrize("size", [5, 1000])
def test_encodings(encoding, size):
    content = {"images": [{"file_name": "é€\U0001f600.png"}]}
    assert read_in_blocks(json.dumps(content, ensure_ascii=False).encode(encoding), size) == content


def test_repeated_keys_keep_their_order():
    text = b'{"images": [1], "images": [2, 3], "info": 1, "info": 2}'
    assert read_in_blocks(text, 7) == json.loads(text) == {"images": [2, 3], "info": 2}


def test_values_that_only_python_accepts():
    assert read_in_blocks(b'{"images": [NaN, Infinity, "\\ud800"]}', 6)["images"][1:] == [
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
def test_errors_have_the_position_of_json(text, size):
    with pytest.raises(ValueError, match="char") as expected:
        json.loads(text)
    with pytest.raises(ValueError, match="char") as error:
        read_in_blocks(text.encode(), size)
    assert str(error.value).split(": ")[-1] == str(expected.value).split(": ")[-1]


def test_errors_are_raised_without_reading_further():
    def blocks():
        yield b'{"images": [{"id": 1}, {"id" 2}, ' + b" " * 100
        raise AssertionError("read further")

    with pytest.raises(ValueError, match=r"Expecting ':' delimiter: line 1 column 30"):
        list(read_members(blocks(), STREAMED))


@pytest.mark.parametrize(("text", "kind"), [("[1, 2", "list"), ("12", "int"), ('"x"', "str")])
def test_documents_other_than_objects(text, kind):
    with pytest.raises(NotAnObjectError, match=kind):
        read_in_blocks(text.encode(), 100)


def test_depth_is_limited():
    with pytest.raises(RecursionError):
        read_in_blocks(b'{"images": ' + b"[" * 100_000, 1000)
