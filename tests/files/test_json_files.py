"""Hints about files of another type than expected."""

import pytest

from detlite.files.errors import DataError
from detlite.files.json_files import explain_not_coco, explain_not_json, read_json


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "; it is empty"),
        ("0 0.5 0.5 0.1 0.1\n1 0.5 0.5 0.1 0.1\n", "; it contains YOLO labels: "),
        ("<annotation></annotation>", "; it is XML, for example of PASCAL VOC: "),
        ("<!doctype HTML>", "; it is a web page: "),
        ("version https://git-lfs.github.com/spec/v1\n", "; it is a git-lfs pointer"),
        ("{'images': []}", "; it has single quotes"),
        ('{"images": [1, 2,\n ]}', "; remove the comma before the closing bracket"),
        ('{"a": 1}\n{"a": 2}\n', "; it has several JSON values, as JSON lines"),
        (b"\x1f\x8b\x08\0", "; it is compressed"),
        ("b\xe4h".encode("latin-1"), "; an editor saved it in another encoding"),
        ("[" * 100_000, ""),
        ('{"images": ', ""),
    ],
)
def test_hints_about_files(tmp_path, text, message):
    file = tmp_path / "a.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=r"a\.json: cannot be read as JSON: ") as error:
        read_json(file)
    assert message in str(error.value) if message else "; " not in str(error.value)


def test_missing_file(tmp_path):
    with pytest.raises(DataError, match=r"none\.json: cannot be read: No such file"):
        read_json(tmp_path / "none.json")
    assert explain_not_json(tmp_path / "none.json", ValueError()) == ""


@pytest.mark.parametrize(
    ("keys", "hint"),
    [
        ({"shapes", "imagePath"}, "; it contains LabelMe labels: "),
        ({"annotations"}, "; 'images', 'annotations' and 'categories' are all required"),
        ({"Images", "a"}, "; write Images in lower case"),
        ({"a"}, ""),
    ],
)
def test_hints_about_keys(keys, hint):
    assert explain_not_coco(keys).startswith(hint)
