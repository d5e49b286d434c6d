"""Almost valid XML files of labels, and files of runs, lead to data or one-line errors."""

import itertools
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from detlite.apps.batch_predict.resumable_run import ResumableRun
from detlite.apps.dataset_formats.find_annotations import read_folder
from detlite.apps.dataset_formats.labeled_dataset import Conversion, to_coco
from detlite.apps.prediction_files.writer import FORMATS, ModelInfo
from detlite.config import ConfigError
from detlite.files.errors import DataError
from tests.fuzz.inputs import check_message, mutated, mutated_bytes, unexpected_values

# An element is [tag, attributes, text, elements].
SIZE = ["size", {}, "", [["width", {}, "60", []], ["height", {}, "40", []]]]
BOX = [
    [side, {}, value, []]
    for side, value in zip(("xmin", "ymin", "xmax", "ymax"), "2398", strict=True)
]
VOC = ["annotation", {}, "", [
    ["filename", {}, "a.png", []], SIZE,
    ["object", {}, "", [["name", {}, "cat", []], ["difficult", {}, "0", []],
                        ["bndbox", {}, "", BOX]]],
]]  # fmt: skip


def to_xml(node: Any) -> ET.Element:
    """Build an element; ValueError if it has another form."""
    if not (isinstance(node, list) and len(node) == 4 and isinstance(node[3], list)):
        raise ValueError("not an element")
    tag, attributes, text, children = node
    if not (isinstance(tag, str) and tag.isidentifier() and isinstance(attributes, dict)):
        raise ValueError("no name, or no attributes")
    valid = {key: str(value) for key, value in attributes.items() if key.isidentifier()}
    element = ET.Element(tag, valid)
    element.text = str(text)
    element.extend([to_xml(child) for child in children])
    return element


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("labels")
    Image.new("RGB", (60, 40)).save(folder / "a.png")
    return folder


def check_reading(data: bytes, folder: Path) -> None:
    (folder / "a.xml").write_bytes(data)
    for skip_bad in (False, True):
        try:
            for dataset in read_folder(folder, Conversion(skip_bad=skip_bad))[1].values():
                to_coco(dataset)
        except (DataError, ConfigError) as error:
            check_message(error, max_length=20_000)


@given(tree=mutated(VOC))
@pytest.mark.slow
def test_elements(tree, folder, bounded):
    try:
        data = ET.tostring(to_xml(tree))
    except (ValueError, UnicodeEncodeError):
        return
    with bounded():
        check_reading(data, folder)


@given(data=mutated_bytes(ET.tostring(to_xml(VOC))))
def test_bytes_of_xml_files(data, folder, bounded):
    with bounded():
        check_reading(data, folder)


MODEL = ModelInfo([{"id": 1, "name": "x"}])
_numbers = itertools.count()


def open_run(folder: Path) -> ResumableRun:
    return ResumableRun(folder, {"weights": "model.pth"}, FORMATS.get("results"), MODEL)


@given(data=st.data())
def test_manifests_and_progress(data, tmp_path, bounded):
    folder = tmp_path / str(next(_numbers))
    entry = {"image": {"id": 1, "file_name": "a"}, "problem": "x"}
    with open_run(folder) as run:
        run.add(entry)
        run.add(entry)
    saved = json.loads((folder / "manifest.json").read_text())
    manifest = data.draw(mutated(saved) | unexpected_values())
    progress = data.draw(mutated_bytes((folder / "progress.jsonl").read_bytes()))
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "progress.jsonl").write_bytes(progress)
    with bounded():
        try:
            with open_run(folder) as run:
                if not run.is_done:
                    run.add(entry)
                    run.finish()
        except (ConfigError, DataError) as error:
            check_message(error)
