"""Read folders of labels in the tests of their formats."""

from pathlib import Path

import pytest

from detlite.apps.dataset_formats.find_annotations import read_folder
from detlite.apps.dataset_formats.labeled_dataset import Conversion, LabeledDataset
from detlite.files.errors import DataError


def read_as(name: str, folder: Path) -> dict[str, LabeledDataset]:
    """Return the sets of a folder in the format of this name."""
    found, sets = read_folder(folder)
    assert found == name
    return sets


def read_set(folder: Path, *masks: str, skip_bad: bool = False) -> LabeledDataset:
    """Return the training set of a folder; `masks` is the meaning of mask files."""
    return read_folder(folder, Conversion(*masks, skip_bad=skip_bad))[1]["train"]


def check_refused(folder: Path, problem: str, file: Path | None = None) -> None:
    """Check that reading a folder fails with a message that matches, and names the file first."""
    with pytest.raises(DataError, match=problem) as raised:
        read_folder(folder)
    assert file is None or str(raised.value).startswith(f"{file}: ")
