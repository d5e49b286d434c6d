"""The `data` arguments of the Python functions."""

import pytest

from detlite.config import ConfigError
from detlite.data import DataError
from detlite.data.data_arguments import evaluation_data, training_data


@pytest.mark.parametrize("data", [3, (), ("a.json",), ("a.json", 3), {"a": 1}, ["a", "b", "c"]])
def test_invalid_data(data):
    expected = r"must be \(annotation file, image folder\)"
    with pytest.raises(ConfigError, match=f"^data is .*{expected}"):
        training_data(data)
    with pytest.raises(ConfigError, match=f"^data is .*{expected}"):
        evaluation_data(data)
    with pytest.raises(ConfigError, match=f"^test_data is .*{expected}"):
        training_data(("a.json", "b"), data)


def test_a_path_and_a_pair(tmp_path):
    with pytest.raises(ConfigError, match="test_data is a pair, but data is a path"):
        training_data(tmp_path, ("a.json", "b"))
    with pytest.raises(ConfigError, match=r"^test_data is .*must be"):
        training_data(("a.json", "b"), tmp_path)
    with pytest.raises(ConfigError, match=r"^data is .*must be"):
        evaluation_data(str(tmp_path))


def test_missing_data(tmp_path):
    with pytest.raises(DataError, match="there is no such file or folder"):
        training_data(tmp_path / "none")
    with pytest.raises(DataError, match=r"the annotation file .*none\.json does not exist"):
        training_data((tmp_path / "none.json", tmp_path))
