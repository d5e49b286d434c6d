import pytest
import torch

from detlite.modeling.backbone.windows import from_windows, global_blocks, to_windows


@pytest.mark.parametrize("size", [(6, 9), (4, 4), (5, 7), (2, 3)])
def test_windows_are_ordered_row_by_row(size):
    side, (height, width) = 3, size
    x = torch.randn(2, height, width, 5)
    windows = to_windows(x, side)
    rows, columns = -(-height // side), -(-width // side)
    assert windows.shape == (2 * rows * columns, side, side, 5)
    for number, window in enumerate(windows):
        image, place = divmod(number, rows * columns)
        top, left = (side * at for at in divmod(place, columns))
        own = x[image, top : top + side, left : left + side]
        assert torch.equal(window[: own.shape[0], : own.shape[1]], own)
        assert not window[own.shape[0] :].any()
        assert not window[:, own.shape[1] :].any()
    assert torch.equal(from_windows(windows, 2, height, width), x)


@pytest.mark.parametrize(
    ("depth", "count", "numbers"),
    [
        (12, 4, {2, 5, 8, 11}),
        (24, 4, {5, 11, 17, 23}),
        (32, 4, {7, 15, 23, 31}),
        (12, 0, set()),
        (2, 4, {0, 1}),
    ],
)
def test_global_blocks_match_vitdet(depth, count, numbers):
    assert global_blocks(depth, count) == numbers
