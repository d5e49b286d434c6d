"""The data that a call from Python names."""

from __future__ import annotations

import pytest

from detlite.config import ConfigError
from detlite.data import DataError
from detlite.data.data_arguments import evaluation_data, training_data


@pytest.mark.parametrize("given", [3, (), ("a.json",), ("a.json", 3), {"a": 1}, ["a", "b", "c"]])
def test_what_is_no_data_is_told(given):
    wanted = r"must be \(annotation file, folder of its pictures\)"
    with pytest.raises(ConfigError, match=f"^data is .*{wanted}"):
        training_data(given)
    with pytest.raises(ConfigError, match=f"^data is .*{wanted}"):
        evaluation_data(given)
    with pytest.raises(ConfigError, match=f"^test_data is .*{wanted}"):
        training_data(("a.json", "b"), given)


def test_a_path_beside_a_pair(tmp_path):
    with pytest.raises(ConfigError, match="test_data is a pair, and data is a path"):
        training_data(tmp_path, ("a.json", "b"))
    with pytest.raises(ConfigError, match=r"^test_data is .*must be"):
        training_data(("a.json", "b"), tmp_path)
    with pytest.raises(ConfigError, match=r"^data is .*must be"):
        evaluation_data(str(tmp_path))


def test_data_that_are_not_there(tmp_path):
    with pytest.raises(DataError, match="there is no such file or folder"):
        training_data(tmp_path / "none")
    with pytest.raises(DataError, match=r"no annotation file .*none\.json"):
        training_data((tmp_path / "none.json", tmp_path))
