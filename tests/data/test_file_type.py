"""What a file is that was taken for another kind."""

from __future__ import annotations

import json

import pytest

from detlite.data.file_type import explain_not_downloaded, explain_not_coco, explain_not_json


def error_of(text):
    try:
        json.loads(text)
    except ValueError as error:
        return error
    raise AssertionError("it is JSON")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "; it is empty"),
        ("0 0.5 0.5 0.1 0.1\n1 0.5 0.5 0.1 0.1\n", "; it holds labels of YOLO: "),
        ("<annotation></annotation>", "; it is XML, such as PASCAL VOC's: "),
        ("<!doctype HTML>", "; it is a web page, not the file: "),
        ("version https://git-lfs.github.com/spec/v1\n", "; it is a pointer of git-lfs"),
        ("{'images': []}", "; it has single quotes"),
        ("[{'id': 1}]", "; it has single quotes"),
        ('{"images": [1, 2,\n ]}', "; remove the comma before the closing bracket"),
        ("b\xe4h".encode("latin-1"), "; save it in UTF-8"),
        ('{"images": ', ""),
        ("nonsense", ""),
    ],
)
def test_reasons(tmp_path, text, message):
    file = tmp_path / "a.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    reason = explain_not_json(file, error_of(text))
    assert reason.startswith(message)
    assert bool(reason) is bool(message)


def test_a_file_that_is_gone_has_no_reason(tmp_path):
    assert explain_not_json(tmp_path / "none", error_of("")) == ""


def test_keys_that_are_not_cocos():
    assert "LabelMe" in explain_not_coco({"shapes", "imagePath"})
    assert "are needed" in explain_not_coco({"annotations"})
    assert explain_not_coco({"a"}) == ""


def test_sound_files_are_left_alone():
    assert explain_not_downloaded(b"PK\x03\x04") == explain_not_downloaded(b"") == ""
