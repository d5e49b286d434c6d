"""The number of rows that training computes."""

import pytest
import torch

from detlite.structures.count_reading import read_count


@pytest.mark.parametrize(
    ("count", "rows"),
    [(0, 8), (1, 8), (8, 8), (9, 16), (127, 128), (129, 144), (1000, 1024), (2040, 2048)],
)
def test_rows_of_a_count(count, rows):
    valid = torch.arange(2048).view(2, 1024) < count
    assert read_count(valid).rows() == rows
    assert read_count(valid[:, :1000]).rows() <= 2000
