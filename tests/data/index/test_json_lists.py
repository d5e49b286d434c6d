"""Reading lists on demand gives the same values and errors as `json.loads`."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detlite.data.index.json_lists import JsonLists, NotAnObjectError

LISTS = ("images", "annotations")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(st.sampled_from(["info", *LISTS]) | st.text(), VALUES)


def read(data):
    source = JsonLists(data.decode(json.detect_encoding(data), "surrogatepass"), LISTS)
    lists = {key: [*source.entries(key)] for key in LISTS if source.members.get(key) == []}
    for key, values in lists.items():
        assert source.count(key) == len(values)
        texts = [json.loads(source.text(key, number)) for number in range(len(values))]
        assert repr(texts) == repr(values)
        assert (key in source.of_objects) == all(isinstance(value, dict) for value in values)
    return {**source.members, **lists}


@given(DOCUMENTS, st.sampled_from([None, 1]), st.booleans())
def test_any_document(content, indent, ascii_only):
    assert read(json.dumps(content, indent=indent, ensure_ascii=ascii_only).encode()) == content


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32-le"])
def test_encodings(encoding):
    content = {"images": [{"file_name": "é€\U0001f600.png"}]}
    assert read(json.dumps(content, ensure_ascii=False).encode(encoding)) == content


def test_the_last_of_repeated_keys_counts():
    text = b'{"images": [1], "images": [{}, {}], "info": 1, "info": 2}'
    assert read(text) == json.loads(text) == {"images": [{}, {}], "info": 2}


def test_values_that_only_python_accepts():
    assert read(b'{"images": [NaN, Infinity, "\\ud800"]}')["images"][1:] == [
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
def test_errors_have_the_position_of_json(text):
    with pytest.raises(ValueError, match="char") as expected:
        json.loads(text)
    with pytest.raises(ValueError, match="char") as error:
        read(text.encode())
    assert str(error.value).split(": ")[-1] == str(expected.value).split(": ")[-1]


@pytest.mark.parametrize(("text", "kind"), [("[1, 2]", "list"), ("12", "int"), ('"x"', "str")])
def test_documents_other_than_objects(text, kind):
    with pytest.raises(NotAnObjectError, match=kind):
        read(text.encode())


def test_depth_is_limited():
    with pytest.raises(RecursionError):
        read(b'{"images": ' + b"[" * 100_000)
