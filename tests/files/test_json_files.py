"""Hints about files of another type than expected."""

import json

import pytest

from detlite.files.errors import DataError
from detlite.files.json_files import explain_not_coco, explain_not_json, read_json


def error_of(text):
    try:
        json.loads(text)
    except ValueError as error:
        return error
    raise AssertionError("valid JSON")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "; it is empty"),
        ("0 0.5 0.5 0.1 0.1\n1 0.5 0.5 0.1 0.1\n", "; it contains YOLO labels: "),
        ("<annotation></annotation>", "; it is XML, for example of PASCAL VOC: "),
        ("<!doctype HTML>", "; it is a web page: "),
        ("version https://git-lfs.github.com/spec/v1\n", "; it is a git-lfs pointer"),
        ("{'images': []}", "; it has single quotes"),
        ("[{'id': 1}]", "; it has single quotes"),
        ('{"images": [1, 2,\n ]}', "; remove the comma before the closing bracket"),
        ('{"a": 1}\n{"a": 2}\n', "; it has several JSON values, as JSON lines"),
        (b"\x1f\x8b\x08\0", "; it is compressed"),
        ("b\xe4h".encode("latin-1"), "; an editor saved it in another encoding"),
        ('{"images": ', ""),
        ("nonsense", ""),
    ],
)
def test_hints_about_files(tmp_path, text, message):
    file = tmp_path / "a.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    hint = explain_not_json(file, error_of(text))
    assert hint.startswith(message)
    assert bool(hint) is bool(message)


def test_missing_file_has_no_hint(tmp_path):
    assert explain_not_json(tmp_path / "none", error_of("")) == ""


def test_hints_about_keys():
    assert "LabelMe" in explain_not_coco({"shapes", "imagePath"})
    assert "are all required" in explain_not_coco({"annotations"})
    assert explain_not_coco({"Images", "a"}) == "; write Images in lower case"
    assert explain_not_coco({"a"}) == ""


@pytest.mark.parametrize("text", ["[", "[" * 100_000, ""])
def test_json_files_that_cannot_be_read_are_named(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match=r"a\.json: cannot be read as JSON: "):
        read_json(tmp_path / "a.json")
    with pytest.raises(DataError, match=r"none\.json: cannot be read: No such file"):
        read_json(tmp_path / "none.json")
