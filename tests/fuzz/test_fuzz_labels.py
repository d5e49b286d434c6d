"""Almost valid XML files of labels, and files of runs, lead to data or one-line errors."""

import json
import xml.etree.ElementTree as ET
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from detlite.apps.batch_predict.resumable_run import ResumableRun
from detlite.apps.dataset_formats.find_annotations import read_folder
from detlite.apps.dataset_formats.labeled_dataset import Conversion, to_coco
from detlite.apps.prediction_files.writer import FORMATS, ModelInfo
from tests.fuzz.inputs import mutated, mutated_bytes, unexpected_values

# An element is [tag, attributes, text, elements].
SIZE = ["size", {}, "", [["width", {}, "60", []], ["height", {}, "40", []]]]
BOX = [[side, {}, value, []] for side, value in (("xmin", "2"), ("ymin", "3"), ("xmax", "9"))]
OBJECT = [["name", {}, "cat", []], ["difficult", {}, "0", []],
          ["bndbox", {}, "", [*BOX, ["ymax", {}, "8", []]]]]  # fmt: skip
VOC = ["annotation", {}, "", [["filename", {}, "a.png", []], SIZE, ["object", {}, "", OBJECT]]]


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


@pytest.fixture
def read(tmp_path, bounded):
    """Return a function that reads an XML file with this content."""
    Image.new("RGB", (60, 40)).save(tmp_path / "a.png")

    def read(data: bytes) -> None:
        (tmp_path / "a.xml").write_bytes(data)
        for skip_bad in (False, True):
            with bounded(max_length=20_000):
                for dataset in read_folder(tmp_path, Conversion(skip_bad=skip_bad))[1].values():
                    to_coco(dataset)

    return read


@given(tree=mutated(VOC))
@pytest.mark.slow
def test_elements(tree, read):
    try:
        data = ET.tostring(to_xml(tree))
    except (ValueError, UnicodeEncodeError):
        return
    read(data)


@given(data=mutated_bytes(ET.tostring(to_xml(VOC))))
def test_bytes_of_xml_files(data, read):
    read(data)


@given(data=st.data())
def test_manifests_and_progress(data, tmp_path_factory, bounded):
    folder = tmp_path_factory.mktemp("run")
    entry = {"image": {"id": 1, "file_name": "a"}, "problem": "x"}

    def add(count: int) -> None:
        writer = FORMATS.get("results")(folder, ModelInfo([{"id": 1, "name": "x"}]))
        run = ResumableRun(writer, {"weights": "model.pth"})
        with closing(run):
            for _ in range(count * (not run.is_done)):
                run.add(entry)
            if count == 1 and not run.is_done:
                run.finish()

    add(2)
    manifest, progress = folder / "manifest.json", folder / "progress.jsonl"
    changed = data.draw(mutated(json.loads(manifest.read_text())) | unexpected_values())
    progress.write_bytes(data.draw(mutated_bytes(progress.read_bytes())))
    manifest.write_text(json.dumps(changed))
    with bounded():
        add(1)
