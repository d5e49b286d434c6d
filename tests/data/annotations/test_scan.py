"""Documents have the same members, entries and errors as with `json.loads`."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detlite.data.annotations.scan import LISTS, document_of, is_coco, read_document
from detlite.files.errors import DataError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
ROWS = st.lists(st.dictionaries(st.text(max_size=3), VALUES, max_size=3), max_size=3)
DOCUMENTS = st.fixed_dictionaries(dict.fromkeys(LISTS, ROWS), optional={"info": VALUES})


def content_of(document):
    lists = {key: [json.loads(bytes(text)) for text in document.texts[key]] for key in LISTS}
    return document.members | lists


@pytest.fixture
def read(tmp_path):
    def write_and_read(data):
        file = tmp_path / "annotations.json"
        file.write_bytes(data)
        return read_document(file)

    return write_and_read


@pytest.mark.slow
@given(content=DOCUMENTS, indent=st.sampled_from([None, 1]), ascii_only=st.booleans())
def test_any_document(content, indent, ascii_only, tmp_path_factory):
    file = tmp_path_factory.mktemp("any") / "annotations.json"
    text = json.dumps(content, indent=indent, ensure_ascii=ascii_only)
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    expected = content_of(document_of(json.loads(text), ""))
    assert repr(content_of(read_document(file))) == repr(expected)
    assert expected.keys() == content.keys()


@pytest.mark.parametrize("value", ["NaN", "Infinity", '"\\ud800"', "1e999", '{"x": 1, "x": 2}'])
@pytest.mark.parametrize("key", ["info", "images"])
def test_values_that_only_python_accepts_and_repeated_keys(value, key, read):
    rest = '"images": [], "annotations": [], "categories": []'
    text = f'{{{rest}, "{key}": [{{"a": {value}}}]}}'
    assert repr(content_of(read(text.encode()))[key]) == repr(json.loads(text)[key])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not valid JSON: .*it is empty"), (b'{"images": [1,]}', "remove the comma"),
        (b'{"images": []}{}', "several JSON values"), (b'"x"', "a JSON str, not an object"),
        (b'{"images": [], "annotations": [], "categories": [{"x": "\xff"}]}', "save it as UTF-8"),
        (b'{"images": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"images": [{"x": ' + b"[" * 9000 + b"]" * 9000 + b"}]}", "nested too deeply"),
        (b'{"images": [], "annotations": {}, "categories": []}', "'annotations' must be a list"),
        (b'{"Images": [], "annotations": [], "categories": []}', "write Images in lower case"),
    ],
)  # fmt: skip
def test_errors(data, message, read):
    with pytest.raises(DataError, match=message):
        read(data)


def test_content_in_memory_must_be_json():
    lists = {key: [] for key in LISTS}
    with pytest.raises(DataError, match="must be JSON"):
        document_of(lists | {"images": [{"id": object()}]}, "content")


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [([], True), ([{"bbox": [], "segments_info": []}], True), ([{"segments_info": []}], False)],
)
def test_panoptic_files_are_not_coco(annotations, expected, tmp_path):
    file = tmp_path / "annotations.json"
    file.write_text(json.dumps({"images": [], "categories": [], "annotations": annotations}))
    assert is_coco(file) == expected
